"""Runs on disk that were never trained."""

import numpy as np

from selsync_jax.configs import digits
from selsync_jax.runs import records
from selsync_jax.runs.store import Store


def random_changes(steps, workers):
  return np.random.default_rng(0).lognormal(-4, 1, (steps, workers))


def totals(step, workers, syncs):
  """Totals of the run so far, which every row has."""
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
  with records.Rows(workdir, 0) as file:
    for i, change in enumerate(changes):
      row = {
        'step': i + 1,
        'loss': 2.0 / (1 + i),
        'accuracy': i / steps,
        'relative_changes': change,
        **totals(i + 1, workers, int(syncs[i])),
      }
      file.write(row)


# Three steps, in the form that a run hands to its writers.
ROWS = [
  {
    'step': step,
    'loss': 1 / step,
    'relative_change': float('inf') if step == 1 else 0.25,
    'relative_changes': [0.25, 0.125],
    'synced': step == 1,
    **totals(step, workers=2, syncs=1),
    **({'validation_accuracy': 0.75} if step == 3 else {}),
  }
  for step in (1, 2, 3)
]


def write_rows(workdir, rows, *to, **fields):
  """Hands rows to the store of a run, which writes them."""
  config = {'workers': 2, 'sync': {'method': 'selsync'}, **fields}
  config |= {'log': {'every': 1, 'to': to or ('tensorboard',)}}
  with Store(workdir, config, rows[0]['step'] - 1) as store, store.recording():
    for row in rows:
      store.row(row)


def events(workdir):
  """Every scalar of a run, `{tag: [(step, value)]}`, read by TensorBoard."""
  from tensorboard.backend.event_processing import event_accumulator

  folder = str(workdir / 'tensorboard')
  reader = event_accumulator.EventAccumulator(folder)
  reader.Reload()
  return {
    tag: [(event.step, event.value) for event in reader.Scalars(tag)]
    for tag in reader.Tags()['scalars']
  }
