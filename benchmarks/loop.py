"""What the training loop adds to the step, and what checkpoints add to that.

  python -m benchmarks.loop

Times, in turns in one run: the compiled step alone on one batch (the limit);
the loop with its data, metrics and progress; and the loop with checkpoints at
their default interval, with the time for which saving blocked it. Prints one
table, writes loop.json.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault('PJRT_NPROC', '16')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')

from absl import logging
import jax

from selsync_jax import checkpoint
from selsync_jax import records
from selsync_jax import trainer

NEVER = 10**9


def configured(name: str, steps: int, checkpoint_every: int | None):
  """A workload's config, `FILE:ARGUMENT`, for so many steps of nothing else."""
  module, _, argument = name.partition(':')
  config = importlib.import_module(f'configs.{module}').get_config(
    argument or 'selsync'
  )
  config.steps = steps
  config.eval.every_epochs = float(NEVER)
  if checkpoint_every:
    config.checkpoint.every = checkpoint_every
  return config


def loop_ms(config) -> tuple[float, list[float]]:
  """Milliseconds of a step in the loop, and those that each save blocked."""
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
      trainer.train_and_evaluate(config, workdir)
      rows = records.read_metrics(workdir)
  finally:
    checkpoint.Checkpoints.save = save
  # From after the compilation to before the last evaluation.
  warm, end = rows[20], rows[-config.log.fetch_every - 2]
  ms = 1e3 * (end['seconds'] - warm['seconds']) / (end['step'] - warm['step'])
  return ms, blocked[:-1]  # The last is at the end of the run.


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument(
    '--configs', nargs='+', default=['digits', 'stdlib_gpt:selsync,smoke']
  )
  parser.add_argument('--steps', type=int, default=1200)
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--out', default='loop.json')
  options = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  jax.config.update('jax_num_cpu_devices', 4)
  results = {}
  print(
    'config                     step ms  loop ms  ratio  saving ms  ratio  '
    'blocked ms a save'
  )
  for name in options.configs:
    plain, saving, steps, blocked = [], [], [], []
    for _ in range(options.rounds):
      config = configured(name, options.steps, NEVER)
      steps.append(trainer.bare_step_seconds(config) * 1e3)
      plain.append(loop_ms(config)[0])
      ms, blocks = loop_ms(configured(name, options.steps, None))
      saving.append(ms)
      blocked += blocks
    row = {
      'step_ms': statistics.median(steps),
      'loop_ms': statistics.median(plain),
      'saving_ms': statistics.median(saving),
      'blocked_ms': statistics.median(blocked) if blocked else None,
      'saves': len(blocked),
    }
    results[name] = row
    print(
      f'{name:26} {row["step_ms"]:7.2f}  {row["loop_ms"]:7.2f}  '
      f'{row["loop_ms"] / row["step_ms"]:5.3f}  {row["saving_ms"]:9.2f}  '
      f'{row["saving_ms"] / row["loop_ms"]:5.3f}  '
      f'{row["blocked_ms"] or 0:17.1f}'
    )
  pathlib.Path(options.out).write_text(json.dumps(results, indent=2) + '\n')


if __name__ == '__main__':
  main()
