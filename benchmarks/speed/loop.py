"""Overhead of the training loop over the step, and of checkpoints.

  python -m benchmarks.speed.loop

Times three things in turn: the compiled step alone, on batches that are already
on the devices (the limit); the loop with its data, metrics, and progress; and
the loop with checkpoints at their default interval, including how long a save
blocks it. Prints one table and writes one JSON file. Takes 5 minutes on 2
cores.
"""

import contextlib
import importlib
import io
import pathlib
import statistics
import tempfile
import time
from typing import Any

from absl import logging
import jax

from benchmarks.table import parser, report, Table
from selsync_jax.devices import backend
from selsync_jax.runs import checkpoints as checkpoint
from selsync_jax.runs import records
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from selsync_jax.training.train import train_and_evaluate

NEVER = 10**6


def configured(name: str, steps: int) -> Any:
  """A workload's config, `FILE` or `FILE:ARGUMENT`, without evaluations."""
  module, _, argument = name.partition(':')
  config = importlib.import_module(f'selsync_jax.configs.{module}').get_config(
    argument or 'selsync'
  )
  config.steps = steps
  config.eval.every_epochs = float(NEVER)
  return config


def step_ms(config: Any, steps: int) -> float:
  """Milliseconds per step, dispatched without waiting for each result."""
  setup = create_setup(check(config))
  mapper, step = setup.mapper, setup.train_step()
  batch = mapper.place(next(setup.problem.data.batches(mapper.local, 0, 1)))
  state, _ = step(setup.initial(), batch)
  jax.block_until_ready(state)
  began = time.perf_counter()
  for _ in range(steps):
    state, _ = step(state, batch)
  jax.block_until_ready(state)
  return 1e3 * (time.perf_counter() - began) / steps


def loop_ms(config: Any) -> tuple[float, list[float]]:
  """Milliseconds per step of the loop, and of each save that blocks it."""
  blocked = []
  save = checkpoint.Checkpoints.save

  def timed(*args):
    start = time.perf_counter()
    save(*args)
    blocked.append(1e3 * (time.perf_counter() - start))

  checkpoint.Checkpoints.save = timed
  try:
    with (
      tempfile.TemporaryDirectory() as folder,
      contextlib.redirect_stdout(io.StringIO()),
    ):
      workdir = pathlib.Path(folder)
      train_and_evaluate(config, workdir)
      rows = records.read_metrics(workdir)
  finally:
    checkpoint.Checkpoints.save = save
  # After the compilation and before the last evaluation.
  warm, end = rows[20], rows[-config.log.fetch_every - 2]
  ms = 1e3 * (end['seconds'] - warm['seconds']) / (end['step'] - warm['step'])
  return ms, blocked[:-1]  # The last save is at the end of the run.


def measure(name: str, steps: int, rounds: int) -> dict[str, Any]:
  """The figures of one workload."""
  limit, plain, saving, blocked = [], [], [], []
  for _ in range(rounds):
    config = configured(name, steps)
    limit.append(step_ms(config, steps))
    saves, waited = loop_ms(config)
    saving.append(saves)
    blocked += waited
    config.checkpoint.every = NEVER
    plain.append(loop_ms(config)[0])
  return {
    'step_ms': statistics.median(limit),
    'loop_ms': statistics.median(plain),
    'saving_ms': statistics.median(saving),
    'blocked_ms': statistics.median(blocked) if blocked else 0.0,
    'saves': len(blocked),
  }


def main() -> None:
  flags = parser(__doc__, 'loop.json', steps=1200, rounds=3)
  both = ['digits', 'stdlib_gpt:selsync,smoke']
  flags.add_argument('--configs', nargs='+', default=both)
  options = flags.parse_args()
  logging.set_verbosity(logging.ERROR)
  backend.make_devices(4)
  rows = {
    name: measure(name, options.steps, options.rounds)
    for name in options.configs
  }
  table = Table(
    ('', 'step ms', 'loop ms', '/step', 'saving ms', '/loop', 'ms of a save'),
    [
      [
        name,
        f'{row["step_ms"]:.2f}',
        f'{row["loop_ms"]:.2f}',
        f'{row["loop_ms"] / row["step_ms"]:.3f}',
        f'{row["saving_ms"]:.2f}',
        f'{row["saving_ms"] / row["loop_ms"]:.3f}',
        f'{row["blocked_ms"]:.1f}',
      ]
      for name, row in rows.items()
    ],
  )
  report(options.out, rows, table)


if __name__ == '__main__':
  main()
