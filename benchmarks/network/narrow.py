"""Step time of islands as the link between them gets narrower.

  python -m benchmarks.network.narrow

Islands take steps as in benchmarks/network/islands.py, which leave the CPU
idle. They average in int8 every `--period` steps, in the background, over links
of several bandwidths; an average may take a whole period. Prints milliseconds
of a step and their ratio to steps that send nothing, and writes narrow.json.
The limit is 1.15 times the time on the widest link.
"""

import argparse
import os

from benchmarks.network import islands
from benchmarks.table import report, Table
from selsync_jax.sync.network import bandwidth as bits_per_second

LIMIT = 1.15
"""Goal: step time on the narrowest link, relative to the widest."""


def one(
  name: str, invitation: str, options: argparse.Namespace
) -> dict[str, float]:
  """Milliseconds of a step on this island, by bandwidth."""
  import selsync_jax as ss

  mean = ss.mean(wire=ss.wires.int8())
  late = ss.delayed(mean, options.period - 1)
  work, found = islands.idle_work(options), {}
  for bandwidth in ('', *options.bandwidths):
    options.limit = bits_per_second(bandwidth) / 8 if bandwidth else None
    k = options.period if bandwidth else 10**9
    strategies = {bandwidth or 'nothing sent': ss.Strategy(ss.every(k), late)}
    found |= islands.times(strategies, work, name, invitation, options)
  return found


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  add = parser.add_argument
  add('--islands', type=int, default=2)
  wide = ['1Gbit', '300Mbit', '100Mbit', '30Mbit', '10Mbit']
  add('--bandwidths', nargs='+', default=wide, help='the widest first')
  add('--period', type=int, default=100)
  add('--step', type=float, default=20, help='milliseconds')
  add('--size', type=int, default=1_310_720, help='float32s')
  add('--rounds', type=int, default=3)
  add('--out', default='narrow.json')
  options = parser.parse_args()
  found = islands.slowest(one, options)
  alone, widest = found['nothing sent'], found[options.bandwidths[0]]
  rows = [
    [name, f'{ms:.2f}', f'{ms / alone:.3f}', f'{ms / widest:.3f}']
    for name, ms in found.items()
  ]
  title = (
    f'{options.islands} islands, {options.size / 1e6:.2f} M parameters, '
    f'an average in int8 every {options.period} steps'
  )
  head = ('', 'ms a step', 'of nothing sent', f'of {options.bandwidths[0]}')
  worst = found[options.bandwidths[-1]] / widest
  report(
    options.out,
    vars(options) | {'cores': os.cpu_count(), 'milliseconds': found},
    Table(head, rows, title),
    notes=[f'the narrowest takes {worst:.2f} as long; the limit is {LIMIT:g}'],
  )


if __name__ == '__main__':
  main()
