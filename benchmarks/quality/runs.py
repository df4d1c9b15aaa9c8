"""Trains the trials of a benchmark, several at a time."""

from collections.abc import Iterable
import concurrent.futures
import contextlib
import io
import multiprocessing
import os
import pathlib

from selsync_jax.cluster import children
from selsync_jax.devices import backend
from selsync_jax.runs.history import Trial


def _begin() -> None:
  """Prepares a process; its runs share the devices that JAX starts with."""
  children.end_with_parent()
  backend.start()


def train(trial: Trial) -> None:
  """Runs a trial that is not finished; one that diverges has no summary."""
  from selsync_jax.runs.ledger import NonFiniteError
  from selsync_jax.simulate.run import simulate
  from selsync_jax.training.train import train_and_evaluate

  execute = {'train': train_and_evaluate, 'simulate': simulate}
  with (
    contextlib.redirect_stdout(io.StringIO()),
    contextlib.suppress(NonFiniteError),
  ):
    execute[trial.command](trial.config, trial.workdir)


def train_all(
  trials: Iterable[Trial], jobs: int, folder: pathlib.Path, name: str
) -> None:
  """Runs the trials that are not finished, and prints how many are done.

  Args:
    trials: the runs.
    jobs: how many run at a time.
    folder: where compiled programs are kept. A program is compiled once, not
      for every seed.
    name: what the lines begin with.
  """
  cache = str(folder.resolve() / 'compiled')
  os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', cache)
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
  wanted = [trial for trial in trials if not trial.is_done]
  with concurrent.futures.ProcessPoolExecutor(
    jobs,
    multiprocessing.get_context('spawn'),
    initializer=_begin,
  ) as pool:
    for index, _ in enumerate(pool.map(train, wanted), 1):
      print(f'{name}: {index} of {len(wanted)} runs', flush=True)
