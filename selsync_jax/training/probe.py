"""The metrics of a run's first steps, without writing anything."""

from typing import Any

from selsync_jax.runs.ledger import Totals
from selsync_jax.sync import replicas
from selsync_jax.training import start
from selsync_jax.training.recorder import create_ledger
from selsync_jax.training.recorder import Recorder
from selsync_jax.training.setup import Setup


def first_steps(setup: Setup, steps: int) -> list[dict[str, Any]]:
  """Takes the first steps of a run, as the run itself would.

  Args:
    setup: the run.
    steps: the number of steps; a shorter run takes fewer.

  Returns:
    A row per step, as in `metrics.jsonl`. The first one's seconds include
    compilation.

  Raises:
    NonFiniteError: if a worker's gradient was not finite.
  """
  rows: list[dict[str, Any]] = []
  recorder = Recorder(
    create_ledger(setup, Totals()),
    setup.plan.workers,
    replicas.leaf_names(setup.problem.shapes['params']),
    fetch=1,  # A row per step, each with its own time.
    takers=[rows.append],
  )
  workers = range(setup.plan.workers)
  state, take_step = start.fresh(setup), setup.train_step()
  stop = min(steps, setup.problem.steps)
  for batch in setup.problem.data.batches(workers, 0, stop):
    state, metrics = take_step(state, batch)
    recorder.add(metrics)
    recorder.enter_ready()
  recorder.enter_all()
  return rows
