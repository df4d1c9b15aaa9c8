"""The state in which a run starts: fresh, resumed, or resized."""

from collections.abc import Callable, Mapping
from typing import Any

from selsync_jax.devices import arrays
from selsync_jax.models import tasks
from selsync_jax.runs.checkpoints import Checkpoints
from selsync_jax.runs.ledger import Totals
from selsync_jax.sync import replicas
from selsync_jax.training import resize
from selsync_jax.training.experiment import Experiment
from selsync_jax.training.recorder import refuse_unequal
from selsync_jax.training.step import TrainState


def fresh(experiment: Experiment) -> TrainState:
  """The state of the workers before the first step, on their devices.

  Raises:
    RunError: if the workers do not start with the same parameters.
  """
  mapper = experiment.mapper
  state = mapper.create(_init(experiment), tasks.run_once())
  if experiment.check_replicas:
    differs = mapper.map_workers(replicas.first_difference)
    leaf = int(arrays.local_values(differs(state.params))[0])
    refuse_unequal(leaf, replicas.leaf_names(state.params), 0)
  return state


def _init(experiment: Experiment) -> Callable[[], TrainState]:
  """What makes one worker's state."""
  compiles = experiment.mapper.compiles
  return experiment.traced_init if compiles else experiment.init


def resumed(
  experiment: Experiment, checkpoints: Checkpoints, step: int
) -> TrainState:
  """The workers' state as it was saved at a step, on their devices."""
  like = experiment.mapper.abstract(experiment.shapes)
  return checkpoints.restore(step, like)


def resized(
  experiment: Experiment,
  checkpoints: Checkpoints,
  totals: Totals,
  saved_workers: int,
  rule: str,
) -> TrainState:
  """Workers' state, resized from a checkpoint of another number of workers.

  Args:
    experiment: of the workers that continue.
    checkpoints: of the run.
    totals: where the run stands.
    saved_workers: how many workers saved the state.
    rule: for the optimizer's state, a name in `resize.OPTIMIZER_STATE`.
  """
  mapper, init = experiment.mapper, _init(experiment)
  old = mapper.abstract_saved(experiment.shapes, saved_workers)
  saved = checkpoints.restore(totals.steps, old)

  def new(saved):
    fresh, method = mapper.stack(init()), experiment.strategy
    position = totals.position
    return resize.resize(saved, fresh, method, mapper.held, rule, position)

  return mapper.compute(new, saved, compiler_options=tasks.run_once())


def totals(experiment: Experiment, record: Mapping[str, Any] | None) -> Totals:
  """Where a run stands, in steps of the experiment's number of workers.

  Args:
    experiment: of the run.
    record: of the newest checkpoint; none for a new run.
  """
  if record is None:
    return Totals()
  saved = Totals(**record['totals'])
  if record['workers'] != experiment.workers:
    position = round(record['epoch'] * experiment.steps_per_epoch)
    saved.shift = position - saved.steps
    saved.skips = []  # Other workers than those that skipped.
  return saved


def state(
  experiment: Experiment,
  checkpoints: Checkpoints,
  totals: Totals,
  record: Mapping[str, Any] | None,
  rule: str,
) -> tuple[TrainState, str | None]:
  """The state of this process's workers: fresh, resumed, or resized.

  Args:
    experiment: of the run.
    checkpoints: of the run.
    totals: where the run stands; a resize leaves it a step at least.
    record: of the newest checkpoint; none for a new run.
    rule: for the optimizer state of another number of workers.

  Returns:
    The state, and a line about where it comes from, if not fresh.
  """
  if record is None:
    return fresh(experiment), None
  line = f'resuming from step {totals.steps}'
  if record['workers'] == experiment.workers:
    return resumed(experiment, checkpoints, totals.steps), line
  # Rounding must not end a run that has not finished.
  totals.shift -= max(0, totals.position + 1 - experiment.steps)
  line += (
    f' with {experiment.workers} workers instead of {record["workers"]}: '
    f'parameters from the consensus, optimizer state by {rule}, '
    f'batches of {experiment.batch_size}, '
    f'learning rate {experiment.peak_rate:.3g}, '
    f'trigger state reset, data at epoch {record["epoch"]:.2f}'
  )
  saved = record['workers']
  return resized(experiment, checkpoints, totals, saved, rule), line
