"""Short runs of the digits in this process, on one device."""

from selsync_jax.configs import digits
from selsync_jax.runs import records
from selsync_jax.runs.fetching import Fetcher
from selsync_jax.runs.ledger import Totals
from selsync_jax.training import start
from selsync_jax.training.train import train_and_evaluate

STEPS = 24
FIELDS = {
  'steps': STEPS,
  'data.backend': 'numpy',  # Two processes need not both import TensorFlow.
  'mapper': 'vmap',
  'checkpoint.every': 8,
  'eval.every_epochs': 1.2,
  'model.name': 'perceptron',
  'model.num_filters': 8,
}


def config(method='selsync', **fields):
  """The config of a short run; fields are given with __ for the dots."""
  short = digits.get_config(method)
  given = {name.replace('__', '.'): value for name, value in fields.items()}
  short.update_from_flattened_dict(FIELDS | given)
  return short


def run(workdir, method='selsync', restart=False, **fields):
  """Trains; returns the summary."""
  short = config(method, **fields)
  return train_and_evaluate(short, workdir, restart=restart)


def first_steps(setup, steps):
  """The rows of the first steps of a run, with nothing on disk."""
  taken = []
  gather = setup.mapper.gather
  fetcher = Fetcher(setup.ledger(Totals()), gather, 1, [taken.append])
  state, take_step = start.init(setup), setup.train_step()
  workers = range(setup.mapper.workers)
  for batch in setup.problem.data.batches(workers, 0, steps):
    state, metrics = take_step(state, batch)
    fetcher.add(metrics)
  fetcher.enter_all()
  return taken


def rows(workdir):
  """The lines of a run's metrics, with the values per worker."""
  metrics = records.read_metrics(workdir)
  values = records.read_workers(workdir, [row['step'] for row in metrics])
  return [
    row | {name: array.tolist() for name, array in arrays.items()}
    for row, arrays in zip(metrics, values, strict=True)
  ]
