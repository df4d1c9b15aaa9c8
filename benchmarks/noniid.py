"""One label a worker: BSP, FedAvg, SelSync, and SelSync with data injection.

  python benchmarks/noniid.py

Ten workers on digits, each with one digit of its own, as in the paper's
non-IID section on CIFAR-10. Every method gets the same learning rates; the one
with the best validation accuracy over all seeds is scored on the test split.
Prints one table and writes one JSON. About 10 minutes on 2 cores.
"""

import argparse
import contextlib
import io
import json
import pathlib
import tempfile
from typing import NamedTuple

from absl import logging
import numpy as np
import rich.box
import rich.console
import rich.table

from configs import digits
from selsync_jax import trainer

WORKERS, BATCH = 10, 8  # 16 steps an epoch; FedAvg's quarter is 4 steps.


class Method(NamedTuple):
  """A row of the table: a method, its fields, and (alpha, beta)."""

  label: str
  name: str
  sync: dict[str, float]
  injection: tuple[float, float] = (0.0, 0.0)


# FedAvg's (C, E) and SelSync's (alpha, beta, delta) as in the paper.
METHODS = (
  Method('BSP', 'bsp', {}),
  Method('FedAvg (1, 0.25)', 'fedavg', dict(fraction=1.0, epochs=0.25)),
  Method('SelSync 0.05', 'selsync', dict(delta=0.05)),
  Method('SelSync 0.3', 'selsync', dict(delta=0.3)),
  Method('SelSync (0.5, 0.5, 0.05)', 'selsync', dict(delta=0.05), (0.5, 0.5)),
  Method('SelSync (0.5, 0.5, 0.3)', 'selsync', dict(delta=0.3), (0.5, 0.5)),
  Method('SelSync (0.75, 0.75, 0.3)', 'selsync', dict(delta=0.3), (0.75, 0.75)),
)


def run(method: Method, rate: float, seed: int, epochs: float) -> dict:
  """The summary of one run."""
  config = digits.get_config(method.name)
  config.update(
    workers=WORKERS, mapper='vmap', batch_size=BATCH, seed=seed, epochs=epochs
  )
  config.data.update(partition='by_label', labels_per_worker=1)
  alpha, beta = method.injection
  config.data.injection.update(alpha=alpha, beta=beta)
  config.sync.update(method.sync)
  config.optimizer.learning_rate = rate
  config.eval.every_epochs = epochs
  with (
    tempfile.TemporaryDirectory() as workdir,
    contextlib.redirect_stdout(io.StringIO()),
  ):
    return trainer.train_and_evaluate(config, pathlib.Path(workdir))


def score(runs: list[dict]) -> dict:
  """What some seeds came to, at one learning rate."""

  def values(field):
    return np.array([run[field] for run in runs])

  return {
    'validation_accuracy': values('validation_accuracy').mean(),
    'test_accuracy': values('test_accuracy').mean(),
    'spread': np.ptp(values('test_accuracy')) / 2,
    'lssr': values('lssr').mean(),
    'megabytes': values('bytes_per_worker').mean() / 1e6,
    'injected_megabytes': values('injection_bytes').mean() / 1e6,
  }


def best(
  method: Method, rates: list[float], seeds: int, epochs: float
) -> dict[str, float]:
  """The row of the learning rate that validates best."""
  rows = [
    {'rate': rate}
    | score([run(method, rate, seed, epochs) for seed in range(seeds)])
    for rate in rates
  ]
  return max(rows, key=lambda row: row['validation_accuracy'])


def table(rows: dict[str, dict]) -> rich.table.Table:
  """The rows as they are printed."""
  out = rich.table.Table(box=rich.box.SIMPLE_HEAD)
  for name in (
    'method (C, E); delta; (alpha, beta, delta)',
    'rate',
    'test accuracy',
    'LSSR',
    'MB averaged',
    'MB injected',
  ):
    out.add_column(name, justify='left' if 'method' in name else 'right')
  for label, row in rows.items():
    out.add_row(
      label,
      f'{row["rate"]:g}',
      f'{row["test_accuracy"]:.3f} ± {row["spread"]:.3f}',
      f'{row["lssr"]:.3f}',
      f'{row["megabytes"]:.1f}',
      f'{row["injected_megabytes"]:.2f}',
    )
  return out


def main() -> None:
  """Runs all, prints, writes."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--epochs', type=float, default=20.0)
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--rates', default='0.03,0.1,0.3')
  parser.add_argument('--json', type=pathlib.Path, default='noniid.json')
  flags = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  rates = [float(rate) for rate in flags.rates.split(',')]
  rows = {
    method.label: best(method, rates, flags.seeds, flags.epochs)
    for method in METHODS
  }
  rich.console.Console().print(table(rows))
  flags.json.write_text(json.dumps(rows, indent=2) + '\n')


if __name__ == '__main__':
  main()
