"""Samples per second of each mapper, by number of workers.

  python -m benchmarks.speed.mappers
  python -m benchmarks.speed.mappers --config=stdlib_gpt:selsync,smoke \
    --workers 4 16

All workers are on this machine. The mappers take turns, so that other load
slows all of them alike. Prints the medians, and two ratios. The first is the
median time of `mesh`, with one device per worker, relative to `pmap`; its limit
is 1.03. The second is the samples per second of the largest number of workers
relative to the smallest, each with its fastest mapper; the goal is 0.7. Writes
one JSON file.
"""

import argparse
from collections.abc import Iterator
import statistics
import time

import jax

from benchmarks.table import parser, report, Table
from selsync_jax.commands import config_file
from selsync_jax.devices import backend
from selsync_jax.training import start
from selsync_jax.training.setup import create_setup

GOAL = 0.7
MAPPERS = ('pmap', 'mesh', 'vmap', 'map')
MESH = 'mesh / pmap'


def times(
  config: str, workers: int, mapper: str, batch: int, steps: int, rounds: int
) -> Iterator[float]:
  """Yields the seconds of some steps; the first ones are not counted."""
  fields = [
    f'--config.workers={workers}',
    f'--config.mapper={mapper}',
    f'--config.batch_size={batch}',
    f'--config.steps={steps * (rounds + 1)}',
    '--config.data.backend=numpy',
  ]
  setup = create_setup(config_file.settings(config, fields))
  indices = range(workers)
  state = start.init(setup)
  step = setup.train_step()
  for k in range(rounds + 1):
    batches = setup.problem.data.batches(indices, k * steps, (k + 1) * steps)
    began = time.perf_counter()
    for data in batches:
      state, metrics = step(state, data)
      jax.block_until_ready(metrics)  # jaxlib 0.10 hangs on too many steps.
    jax.block_until_ready(state)
    if k:
      yield time.perf_counter() - began


def measure(workers: int, options: argparse.Namespace) -> dict[str, float]:
  """Samples a second by mapper, and the time of mesh relative to pmap."""
  timing = options.batch_size, options.steps, options.rounds
  turns = zip(
    *(times(options.config, workers, name, *timing) for name in MAPPERS),
    strict=True,
  )
  seconds = dict(zip(MAPPERS, zip(*turns, strict=True), strict=True))
  samples = workers * options.batch_size * options.steps
  rates = {
    name: samples / statistics.median(column)
    for name, column in seconds.items()
  }
  pairs = zip(seconds['mesh'], seconds['pmap'], strict=True)
  return rates | {MESH: statistics.median(mesh / pmap for mesh, pmap in pairs)}


def main(argv: list[str] | None = None) -> None:
  flags = parser(__doc__, 'mappers.json', batch_size=8, steps=4, rounds=3)
  flags.add_argument('--config', default='digits')
  flags.add_argument('--workers', type=int, nargs='+', default=[8, 128])
  options = flags.parse_args(argv)
  backend.make_devices(max(options.workers))
  rows = {workers: measure(workers, options) for workers in options.workers}
  table = Table(
    ('workers', *MAPPERS, MESH),
    [
      [str(n), *(f'{row[m]:,.0f}' for m in MAPPERS), f'{row[MESH]:.3f}']
      for n, row in rows.items()
    ],
    f'{options.config}, {jax.devices()[0].device_kind}, samples/s',
  )
  few, many = min(rows), max(rows)
  fastest = {n: max(row[name] for name in MAPPERS) for n, row in rows.items()}
  ratio = fastest[many] / fastest[few]
  note = f'{many} workers have {ratio:.2f} of the samples a second of {few}; '
  report(options.out, rows, table, notes=[f'{note}goal {GOAL}'])


if __name__ == '__main__':
  main()
