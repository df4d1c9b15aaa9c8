"""Cost of a step on a slow network, next to the limit of the wire.

  python -m benchmarks.network.steps --hosts=4 --bandwidths 200mbit 1gbit

Runs every kind of step on an emulated cluster (benchmarks/network/cluster.py)
with one worker per host. For comparison it times an all-reduce of the same
bytes alone, and computes the limit of the wire, 2 (N-1)/N x bytes / bandwidth.
Prints one table and writes steps.json.
"""

import argparse
import functools
import os
import statistics

from benchmarks.network import cluster as emulated
from benchmarks.table import parser, report, Table
from selsync_jax.sync.network import bandwidth as bits_per_second

SCALAR = 'all-reduce of one number alone'
SLOWEST = 'local step, slowest host'
TO_LIMIT = ('all-reduce alone', 'SelSync, synchronization')


def jax_times(options: argparse.Namespace) -> dict[str, float]:
  """Milliseconds of every kind of step, on this host of the cluster."""
  from benchmarks import variants
  from benchmarks.network import host
  from selsync_jax.cluster import processes

  with host.joined():
    made = {
      name: variants.Variant(first, 1, variants.convnet(options.width))
      for name, first in variants.FIRST.items()
    }
    params = made['local step'].params
    runs = {name: variant.run for name, variant in made.items()}
    runs[SCALAR] = variants.all_reduce_alone(1, 1)
    runs['all-reduce alone'] = variants.all_reduce_alone(1, params)
    align = functools.partial(processes.wait_for_all, 'aligned')
    each = options.steps, options.rounds
    seconds = variants.time_interleaved(runs, *each, align)
  times = {n: 1e3 * statistics.median(s) for n, s in seconds.items()}
  return times | {'bytes': 4 * params}


def measure(options: argparse.Namespace, bandwidth: str) -> dict[str, float]:
  """All figures at one bandwidth, in milliseconds, from host 0."""
  hosts = options.hosts
  each = emulated.figures(jax_times, options, bandwidth=bandwidth)
  figures = each[0] | {SLOWEST: max(host['local step'] for host in each)}
  nbytes = figures.pop('bytes')
  wire = 2 * (hosts - 1) / hosts * nbytes * 8 / bits_per_second(bandwidth)
  return figures | {'limit of the wire': 1e3 * wire, 'bytes': nbytes}


def main() -> None:
  # Width 96: 1.34 M parameters, 5.4 MB that a synchronization moves.
  flags = parser(__doc__, 'steps.json', hosts=4, width=96, steps=5, rounds=7)
  flags.add_argument('--bandwidths', nargs='+', default=['200mbit', '1gbit'])
  options = flags.parse_args()
  table = {b: measure(options, b) for b in options.bandwidths}
  nbytes = {row.pop('bytes') for row in table.values()}.pop()
  first = next(iter(table.values()))
  rows = [[n, *(f'{row[n]:.2f}' for row in table.values())] for n in first]
  ratios = [
    *((name, 'limit of the wire', 'limit') for name in TO_LIMIT),
    *((name, 'local step', 'local') for name in [*first][1:4]),
  ]
  for name, other, short in ratios:
    each = [f'{row[name] / row[other]:.2f}' for row in table.values()]
    rows.append([f'{name} / {short}', *each])
  title = f'{options.hosts} hosts, {nbytes / 1e6:.2f} MB of parameters; ms'
  result = {
    'hosts': options.hosts,
    'cores': os.cpu_count(),
    'bytes': nbytes,
    'milliseconds': table,
  }
  report(options.out, result, Table(['', *table], rows, title))


if __name__ == '__main__':
  main()
