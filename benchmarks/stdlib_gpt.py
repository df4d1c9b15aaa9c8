"""Does SelSync train a language model as well as BSP does?

  python -m benchmarks.stdlib_gpt

The smoke variant of configs/stdlib_gpt.py under BSP and under SelSync. Both get
the same learning rates, and each the one with the lowest validation loss over
all seeds: workers with an AdamW of their own want another rate than BSP does,
and at one rate for both the comparison would be of rates. Prints one table and
writes one JSON. 18 runs, 8 minutes on 2 cores.
"""

import argparse
import contextlib
import io
import json
import pathlib
import tempfile
from typing import Any

from absl import logging
import numpy as np
import rich.box
import rich.console
import rich.table

from configs import stdlib_gpt
from selsync_jax import trainer
from selsync_jax import workers

METHODS = ('bsp', 'selsync')
FIELDS = ('validation_loss', 'test_loss', 'lssr', 'bytes_per_worker')


def run(
  method: str, rate: float, seed: int, flags: argparse.Namespace
) -> dict[str, float]:
  """What the summary of one run tells of `FIELDS`."""
  config = stdlib_gpt.get_config(f'{method},smoke')
  config.update(seed=seed, steps=flags.steps or config.steps)
  config.optimizer.learning_rate = rate
  config.eval.every_epochs = 1e3  # At the end alone.
  config.data.dir = flags.data_dir
  with (
    tempfile.TemporaryDirectory() as workdir,
    contextlib.redirect_stdout(io.StringIO()),
  ):
    summary = trainer.train_and_evaluate(config, pathlib.Path(workdir))
  return {field: summary[field] for field in FIELDS}


def grid(method: str, flags: argparse.Namespace) -> dict[str, Any]:
  """All runs of a method, and the rate that validates best."""
  runs = {
    f'{rate:g}': [run(method, rate, seed, flags) for seed in range(flags.seeds)]
    for rate in map(float, flags.rates.split(','))
  }
  best = min(runs, key=lambda rate: mean(runs[rate], 'validation_loss'))
  return {'best_rate': best, 'runs': runs}


def mean(runs: list[dict[str, float]], field: str) -> float:
  """Over the seeds."""
  return float(np.mean([run[field] for run in runs]))


def table(methods: dict[str, dict[str, Any]]) -> rich.table.Table:
  """A row for each method and rate; the best of a method is marked."""
  out = rich.table.Table(box=rich.box.SIMPLE_HEAD)
  for name in ('method', 'rate', 'validation loss', 'test loss', 'LSSR', 'MB'):
    out.add_column(name, justify='left' if name == 'method' else 'right')
  for method, found in methods.items():
    for rate, runs in found['runs'].items():
      losses = [run['test_loss'] for run in runs]
      out.add_row(
        f'{method} *' if rate == found['best_rate'] else method,
        rate,
        f'{mean(runs, "validation_loss"):.4f}',
        f'{np.mean(losses):.4f} ± {np.ptp(losses) / 2:.4f}',
        f'{mean(runs, "lssr"):.3f}',
        f'{mean(runs, "bytes_per_worker") / 1e6:.1f}',
      )
  return out


def main(argv: list[str] | None = None) -> None:
  """Runs all, prints, writes."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--rates', default='0.006,0.012,0.024')
  parser.add_argument('--seeds', type=int, default=3, help='how many')
  parser.add_argument('--steps', type=int, help="default: the config's")
  parser.add_argument('--data_dir', help="default: TFDS's own")
  parser.add_argument('--json', type=pathlib.Path, default='stdlib_gpt.json')
  flags = parser.parse_args(argv)
  logging.set_verbosity(logging.ERROR)
  workers.make_devices(stdlib_gpt.get_config('bsp,smoke').workers)
  methods = {method: grid(method, flags) for method in METHODS}
  bsp, selsync = (
    mean(found['runs'][found['best_rate']], 'test_loss')
    for found in methods.values()
  )
  console = rich.console.Console()
  console.print(table(methods))
  console.print(
    f"  * best on validation. SelSync's test loss / BSP's: {selsync / bsp:.4f}"
  )
  result = {'test_loss_to_bsp': selsync / bsp, **methods}
  flags.json.write_text(json.dumps(result, indent=2) + '\n')


if __name__ == '__main__':
  main()
