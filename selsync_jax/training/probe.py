"""Takes the first steps of a run and returns their metrics; writes nothing."""

from typing import Any

from selsync_jax.runs.ledger import Totals
from selsync_jax.sync import replicas
from selsync_jax.training import loop
from selsync_jax.training import start
from selsync_jax.training.experiment import Experiment
from selsync_jax.training.recorder import create_ledger
from selsync_jax.training.recorder import Recorder


def first_steps(
  experiment: Experiment, steps: int, workers: int
) -> list[dict[str, Any]]:
  """Takes the first steps of a run, as the run itself would.

  Args:
    experiment: of the run.
    steps: how many to take; fewer if the run is shorter.
    workers: how many of the workers to run, the first ones. Each reads the
      same data as in the full run.

  Returns:
    A row per step, as in `metrics.jsonl`. The first one's seconds include
    compilation.

  Raises:
    NonFiniteError: if a worker's gradient was not finite.
  """
  rows: list[dict[str, Any]] = []
  recorder = Recorder(
    create_ledger(experiment, Totals(), workers),
    workers,
    replicas.leaf_names(experiment.shapes.params),
    fetch=1,  # A row per step, each with its own time.
    write=rows.append,
  )
  indices = range(workers)
  state = start.fresh(experiment)
  stop = min(steps, experiment.steps)
  loop.run(experiment, state, recorder, indices, stop)
  recorder.enter_all()
  return rows
