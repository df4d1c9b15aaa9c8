"""Do runs with a suggested delta reach the requested LSSR?

  python -m benchmarks.quality.delta --lssrs 0.5 0.7 0.8 0.9 0.95 --seeds=3

For each LSSR, takes the suggestion of `selsync delta`, and does full runs with
seeds that the suggestion has not seen. Prints one table and writes delta.json.
The limit is 0.1.
"""

import argparse

import ml_collections

from benchmarks.table import report
from benchmarks.table import Table
from selsync_jax.commands import config_file
from selsync_jax.devices import layout
from selsync_jax.training import delta_search
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup

LIMIT = 0.1
FRESH = 100  # The first seed of the full runs.


def reached(
  config: ml_collections.ConfigDict, seed: int, value: float
) -> float:
  """The LSSR of a full run with a delta."""
  config = config.copy_and_resolve_references()
  config.seed, config.sync.delta = seed, value
  setup = create_setup(check(config))
  rows = delta_search.first_steps(setup, setup.problem.steps)
  return rows[-1]['lssr']


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--config', default='configs/digits.py')
  parser.add_argument('--lssrs', nargs='+', type=float, default=[0.7, 0.9])
  parser.add_argument('--seeds', type=int, default=3, help='full runs')
  parser.add_argument('--steps', type=int, default=200, help='to record')
  parser.add_argument('--out', default='delta.json')
  options, fields = parser.parse_known_args()
  config = config_file.load(options.config, fields)
  layout.make_devices(config.workers, 1)
  rows = []
  for wanted in options.lssrs:
    value = delta_search.choose(config, wanted, options.steps).delta
    seeds = range(FRESH, FRESH + options.seeds)
    lssrs = [reached(config, seed, value) for seed in seeds]
    worst = max(abs(lssr - wanted) for lssr in lssrs)
    rows.append(dict(wanted=wanted, delta=value, reached=lssrs, worst=worst))
  table = Table(
    ('wanted', 'delta', 'reached'),
    [
      [
        str(row['wanted']),
        str(row['delta']),
        ' '.join(f'{lssr:.3f}' for lssr in row['reached']),
      ]
      for row in rows
    ],
  )
  worst = max(row['worst'] for row in rows)
  note = f'off by {worst:.3f} at most; limit {LIMIT}'
  report(options.out, rows, table, notes=[note])


if __name__ == '__main__':
  main()
