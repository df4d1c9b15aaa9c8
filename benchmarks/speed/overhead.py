"""What measuring, voting, and compressing cost, in one process.

  python -m benchmarks.speed.overhead

Prints the time of a SelSync step that does not synchronize, relative to a plain
local step timed in turn with it. It adds the parts one after another: measuring
the gradient's change, voting, and a `lax.cond` that could average. The limit is
1, a step with none of the parts.

A second table has the time of a step with each reducer, on the model of
configs/digits.py, relative to the same local step. Writes overhead.json.
"""

import argparse
import itertools
import json
import os
import pathlib
import platform

import jax
import numpy as np

from benchmarks import variants
import selsync_jax as ss
from selsync_jax.sync import exdyna
from selsync_jax.sync import power_sgd
from selsync_jax.sync import reducers
from selsync_jax.sync import sparse

# The first transformation of the chain, and whether the step may average.
STEPS = {
  'local': (None, False),
  'measuring': (ss.measure(), False),
  'voting': (ss.selsync(float('inf')), False),
  'SelSync': (ss.selsync(float('inf')), True),
}

REDUCERS = {
  'local': None,
  'all_reduce': reducers.all_reduce(),
  'int8': reducers.int8(),
  'top_k': sparse.top_k(0.01),
  'micro': sparse.micro(0.01),
  'exdyna': exdyna.exdyna(0.01),
  'power_sgd': power_sgd.power_sgd(4),
}
DIGITS = 32  # The width of the network in configs/digits.py.


def selsync_row(width: int, count: int, steps: int, rounds: int) -> dict:
  """What the parts of a SelSync step cost, for some number of workers."""
  runs = {
    name: variants.Variant(first, count, variants.convnet(width), averages)
    for name, (first, averages) in STEPS.items()
  }
  seconds = variants.time_interleaved(
    {name: variant.run for name, variant in runs.items()}, steps, rounds
  )
  plain, measuring, voting, selsync = map(np.array, seconds.values())
  return {
    'workers': count,
    'params': runs['local'].params,
    'local_ms': 1e3 * float(np.median(plain)),
    'selsync_ms': 1e3 * float(np.median(selsync)),
    'measuring': float(np.median(measuring / plain)),
    'voting': float(np.median(voting / plain)),
    'ratio': float(np.median(selsync / plain)),
    'ratio_least': float(np.min(selsync) / np.min(plain)),
  }


def reducers_row(count: int, steps: int, rounds: int) -> dict:
  """What a step with each reducer costs, for some number of workers."""
  runs = {
    name: variants.Variant(
      first, count, variants.convnet(DIGITS), averages=False
    ).run
    for name, first in REDUCERS.items()
  }
  seconds = variants.time_interleaved(runs, steps, rounds)
  local = np.array(seconds.pop('local'))
  return {
    'workers': count,
    'local_ms': 1e3 * float(np.median(local)),
    **{name: float(np.median(s / local)) for name, s in seconds.items()},
  }


def show(rows: list[dict], reduced: list[dict]) -> None:
  """Prints both tables."""
  print(
    'workers  parameters  local ms  SelSync ms  measuring  and voting  ratio  '
    'of the fastest'
  )
  for row in rows:
    print(
      f'{row["workers"]:7}  {row["params"]:10,}  {row["local_ms"]:8.2f}  '
      f'{row["selsync_ms"]:10.2f}  {row["measuring"]:9.3f}  '
      f'{row["voting"]:10.3f}  {row["ratio"]:5.3f}  {row["ratio_least"]:14.3f}'
    )
  names = [name for name in REDUCERS if name != 'local']
  print('\nworkers  local ms', *(f'{name:>10}' for name in names))
  for row in reduced:
    print(
      f'{row["workers"]:7}  {row["local_ms"]:8.2f}',
      *(f'{row[name]:10.3f}' for name in names),
    )


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument(
    '--widths', type=int, nargs='*', default=[64, 128], help='of the network'
  )
  parser.add_argument('--steps', type=int, default=10, help='per round')
  parser.add_argument('--rounds', type=int, default=20)
  parser.add_argument('--workers', type=int, nargs='+', default=[1, 2, 4])
  parser.add_argument('--out', default='overhead.json')
  options = parser.parse_args()
  jax.config.update('jax_num_cpu_devices', max(options.workers))
  counts = [n for n in options.workers if n <= jax.local_device_count()]
  for count in sorted({*options.workers} - {*counts}):
    print(f'{count} workers: only {jax.local_device_count()} devices')
  timing = options.steps, options.rounds
  rows = [
    selsync_row(width, count, *timing)
    for width, count in itertools.product(options.widths, counts)
  ]
  reduced = [reducers_row(count, *timing) for count in counts]
  show(rows, reduced)
  machine = {
    'device': jax.devices()[0].device_kind,
    'cores': os.cpu_count(),
    'jax': jax.__version__,
    'python': platform.python_version(),
  }
  result = {'machine': machine, 'rows': rows, 'reducers': reduced}
  text = json.dumps(result, indent=2)
  pathlib.Path(options.out).write_text(text + '\n')


if __name__ == '__main__':
  main()
