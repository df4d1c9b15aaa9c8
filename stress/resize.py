"""Loss of a run that continues with another number of workers.

  python -m stress.resize
  python -m stress.resize --config=configs/stdlib_gpt.py:selsync,smoke \
    --config.eval.every_epochs=0.027

For each seed, one run is uninterrupted. Copies of it return to the checkpoints
after 1/parts, 2/parts, ... of the run and continue with another number of
workers. The table shows their validation loss at the next evaluation, relative
to the uninterrupted run: one figure per seed, and the mean with its standard
error. The control is a copy that continues with the same number of workers and
another order of the data. Prints one table and writes resize.json.
"""

import argparse
import collections
from collections.abc import Iterator, Sequence
import contextlib
import io
import json
import pathlib
import shutil
import statistics
import tempfile

from absl import logging
import ml_collections

from selsync_jax.commands import config_file
from selsync_jax.runs import records
from selsync_jax.training.problem import create_problem
from selsync_jax.training.settings import check
from selsync_jax.training.train import train_and_evaluate
from tests.support import live_runs

SCORE = 'validation_loss'


def next_loss(workdir: pathlib.Path, step: int) -> float:
  """The validation loss at the first evaluation after a step."""
  rows = records.read_metrics(workdir)
  return next(r[SCORE] for r in rows if SCORE in r and r['step'] > step)


def run(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Trains without printing."""
  with contextlib.redirect_stdout(io.StringIO()):
    train_and_evaluate(config, workdir)


def changed(
  config: ml_collections.ConfigDict, **fields
) -> ml_collections.ConfigDict:
  """A copy of the config with some fields replaced."""
  config = config.copy_and_resolve_references()
  config.update(fields)
  return config


def prepare(
  config: ml_collections.ConfigDict, parts: int
) -> tuple[ml_collections.ConfigDict, list[int]]:
  """The config with a checkpoint after each part, and the checkpoints' steps.

  The length is in epochs, so that it is the same for any number of workers.
  """
  job = create_problem(check(config))
  config = changed(config, steps=None, epochs=job.steps / job.steps_per_epoch)
  every = job.steps // parts
  config.checkpoint.update(every=every, keep=parts)
  return config, [every * part for part in range(1, parts)]


def ratio(
  config: ml_collections.ConfigDict, alone: pathlib.Path, step: int
) -> float:
  """The next loss after resuming with `config`, relative to no interruption."""
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / 'resized'
    shutil.copytree(alone, workdir)
    live_runs.go_back(workdir, step)
    records.write_config(workdir, config.to_dict())  # The seed may differ.
    run(config, workdir)
    return next_loss(workdir, step) / next_loss(alone, step)


def measure(
  config: ml_collections.ConfigDict,
  parts: int,
  counts: Sequence[int],
  seeds: int,
  folder: pathlib.Path,
) -> Iterator[tuple[int, dict[str, list[float]]]]:
  """Yields the step of each checkpoint, and the ratios of each change."""
  config, moments = prepare(config, parts)
  configs = [changed(config, seed=config.seed + i) for i in range(seeds)]
  alone = [folder / f'seed{each.seed}' for each in configs]
  for each, workdir in zip(configs, alone, strict=True):
    run(each, workdir)
  for step in moments:
    row = collections.defaultdict(list)
    for each, workdir in zip(configs, alone, strict=True):
      others = {f'as {n}': changed(each, workers=n) for n in counts}
      others['other order'] = changed(each, seed=each.seed + seeds)
      for name, other in others.items():
        row[name].append(ratio(other, workdir, step))
    yield step, row


def _summary(ratios: Sequence[float]) -> str:
  each = ' '.join(f'{ratio:.3f}' for ratio in ratios)
  if len(ratios) == 1:
    return each
  error = statistics.stdev(ratios) / len(ratios) ** 0.5
  return f'{each}  mean {statistics.mean(ratios):.3f} +- {error:.3f}'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--config', default='configs/digits.py')
  parser.add_argument('--parts', type=int, default=3, help='of the run')
  parser.add_argument('--workers', type=int, nargs='+', default=[2, 8])
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--out', default='resize.json')
  options, fields = parser.parse_known_args()
  logging.set_verbosity(logging.ERROR)
  config = changed(config_file.load(options.config, fields), mapper='vmap')
  table = {}
  with tempfile.TemporaryDirectory() as folder:
    for step, row in measure(
      config,
      options.parts,
      options.workers,
      options.seeds,
      pathlib.Path(folder),
    ):
      table[step] = row
      for name, ratios in row.items():
        print(f'step {step:<6} {name:<12} {_summary(ratios)}', flush=True)
  pathlib.Path(options.out).write_text(json.dumps(table, indent=2) + '\n')


if __name__ == '__main__':
  main()
