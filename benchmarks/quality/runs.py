"""Trains the trials of a benchmark, several at a time."""

from collections.abc import Iterable

from selsync_jax.commands import pool
from selsync_jax.runs.history import Trial


def train_all(trials: Iterable[Trial], jobs: int) -> None:
  """Runs the trials that are not finished; one that diverges has no summary."""
  quiet = [t._replace(flags=[*t.flags, '--noreport']) for t in trials]
  processes = pool.create_processes(jobs)
  pool.run_all(quiet, jobs, processes, processes.run)
