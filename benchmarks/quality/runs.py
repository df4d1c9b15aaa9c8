"""Trains the trials of a benchmark, several at a time."""

from collections.abc import Callable, Iterable
import functools

from selsync_jax.commands import pool
from selsync_jax.runs.history import Trial


def train_all(
  trials: Iterable[Trial],
  jobs: int,
  is_enough: Callable[[Trial], bool] = lambda trial: False,
) -> None:
  """Runs the trials that are not finished; one that diverges has no summary.

  One that `is_enough` is stopped; it goes on if more is asked of it later.
  """
  quiet = [
    t._replace(flags=[*t.flags, '--noreport'])
    for t in trials
    if not is_enough(t)
  ]
  processes = pool.create_processes(jobs)
  processes.run_all(
    quiet,
    lambda trial: processes.run(trial, functools.partial(is_enough, trial)),
  )
