"""Runs on disk that nobody trained."""

import numpy as np

from selsync_jax.configs import digits
from selsync_jax.runs import records


def random_changes(steps, workers):
  return np.random.default_rng(0).lognormal(-4, 1, (steps, workers))


def totals(step, workers, syncs):
  """What every row says of the run so far."""
  return {
    'lssr': 1 - syncs / step,
    'samples': 32 * workers * step,
    'bytes_per_worker': 1000 * syncs,
    'seconds': 0.01 * (step - 1),
    'samples_per_second': 3200.0,
  }


def summary(steps, workers=2, **fields):
  """The outcome of a run without scores."""
  return {
    'method': 'selsync',
    'workers': workers,
    'seed': 0,
    'steps': steps,
    'sync_steps': 1,
    'bytes_per_worker_bsp': 1000 * steps,
    **totals(steps, workers, 1),
    **fields,
  }


def write_run(workdir, changes):
  """Writes an unfinished run with these changes [steps, workers]."""
  steps, workers = changes.shape
  config = digits.get_config()
  config.workers = workers
  workdir.mkdir()
  (workdir / 'config.json').write_text(config.to_json())
  syncs = np.cumsum(changes.max(axis=1) >= config.sync.delta)
  with records.MetricsFile(workdir, 0) as file:
    for i, change in enumerate(changes):
      row = {
        'step': i + 1,
        'loss': 2.0 / (1 + i),
        'accuracy': i / steps,
        'relative_changes': change,
        **totals(i + 1, workers, int(syncs[i])),
      }
      file.write(row)
