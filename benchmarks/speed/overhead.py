"""Cost of measuring, voting, and compressing, in one process.

  python -m benchmarks.speed.overhead

Prints the time of a SelSync step that does not synchronize, relative to a plain
local step timed in turn. The parts are added one after another: measuring the
gradient's change, voting, and a `lax.cond` that could average. The limit is 1,
a step with none of the parts.

A second table has the time of a step with each reducer, on the model of
configs/digits.py, relative to the same local step. Writes overhead.json.
"""

import itertools
import os
import platform

import jax
import numpy as np

from benchmarks import variants
from benchmarks.table import parser, report, Table
import selsync_jax as ss
from selsync_jax.sync import power_sgd, reducers, sparse

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
  'exdyna': sparse.exdyna(0.01),
  'power_sgd': power_sgd.power_sgd(4),
}
DIGITS = 32  # The width of the network in configs/digits.py.


def selsync_row(width: int, count: int, steps: int, rounds: int) -> dict:
  """Cost of the parts of a SelSync step, for a number of workers."""
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
  """Cost of a step with each reducer, for a number of workers."""
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


def tables(rows: list[dict], reduced: list[dict]) -> tuple[Table, Table]:
  """Both tables to print."""
  head = 'workers,parameters,local ms,SelSync ms,measuring,and voting,ratio'
  names = [name for name in REDUCERS if name != 'local']
  return Table(
    [*head.split(','), 'of the fastest'],
    [
      [
        f'{row["workers"]}',
        f'{row["params"]:,}',
        f'{row["local_ms"]:.2f}',
        f'{row["selsync_ms"]:.2f}',
        *(
          f'{row[name]:.3f}'
          for name in ('measuring', 'voting', 'ratio', 'ratio_least')
        ),
      ]
      for row in rows
    ],
  ), Table(
    ['workers', 'local ms', *names],
    [
      [
        f'{row["workers"]}',
        f'{row["local_ms"]:.2f}',
        *(f'{row[name]:.3f}' for name in names),
      ]
      for row in reduced
    ],
  )


def main() -> None:
  flags = parser(__doc__, 'overhead.json', steps=10, rounds=20)
  add, about = flags.add_argument, 'of the network'
  add('--widths', type=int, nargs='*', default=[64, 128], help=about)
  add('--workers', type=int, nargs='+', default=[1, 2, 4])
  options = flags.parse_args()
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
  machine = {
    'device': jax.devices()[0].device_kind,
    'cores': os.cpu_count(),
    'jax': jax.__version__,
    'python': platform.python_version(),
  }
  result = {'machine': machine, 'rows': rows, 'reducers': reduced}
  report(options.out, result, *tables(rows, reduced))


if __name__ == '__main__':
  main()
