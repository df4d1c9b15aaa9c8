"""The state in which a run starts: fresh, resumed, or resized."""

from collections.abc import Mapping
from typing import Any

from selsync_jax.devices import arrays
from selsync_jax.devices import mappers
from selsync_jax.devices import processes
from selsync_jax.devices.layout import Layout
from selsync_jax.models import tasks
from selsync_jax.runs.checkpoints import Checkpoints
from selsync_jax.runs.ledger import Totals
from selsync_jax.sync import replicas
from selsync_jax.training import resize
from selsync_jax.training.experiment import Experiment
from selsync_jax.training.recorder import refuse_unequal
from selsync_jax.training.step import TrainState


def fresh(experiment: Experiment, workers: range) -> TrainState:
  """The state of some workers before the first step, on their devices.

  Raises:
    RunError: if the workers do not start with the same parameters.
  """
  state = _fresh(experiment, workers)
  if experiment.check_replicas:
    differs = mappers.map_workers(replicas.first_difference, experiment.mapper)
    leaf = int(arrays.local_values(differs(state.params))[0])
    refuse_unequal(leaf, replicas.leaf_names(state.params), 0)
  return state


def _fresh(experiment: Experiment, workers: range) -> TrainState:
  mapper = experiment.mapper
  if isinstance(mapper, Layout):  # No device may have room for all of it.
    return mapper.create(experiment.traced_init, tasks.run_once())
  return mappers.place(
    mappers.replicate(experiment.init(), len(workers)), mapper
  )


def resumed(
  experiment: Experiment,
  workers: range,
  checkpoints: Checkpoints,
  step: int,
) -> TrainState:
  """The state of some workers as it was saved at a step, on their devices."""
  like = mappers.abstract_state(
    experiment.shapes, len(workers), experiment.mapper
  )
  return checkpoints.restore(step, like)


def resized(
  experiment: Experiment,
  workers: range,
  checkpoints: Checkpoints,
  totals: Totals,
  saved_workers: int,
  rule: str,
) -> TrainState:
  """Workers' state, resized from a checkpoint of another number of workers.

  Args:
    experiment: of the workers that continue.
    workers: indices of this process's workers.
    checkpoints: of the run.
    totals: where the run stands.
    saved_workers: how many workers saved the state.
    rule: for the optimizer's state, a name in `resize.OPTIMIZER_STATE`.
  """
  old = mappers.abstract(experiment.shapes, saved_workers)
  mapper, step = experiment.mapper, totals.position
  if isinstance(mapper, Layout):
    saved = checkpoints.restore(totals.steps, mappers.split(old, mapper.spread))

    def new(saved):
      fresh = mapper.stack(experiment.traced_init())
      every = range(mapper.workers)
      return resize.resize(saved, fresh, experiment.strategy, every, rule, step)

    return mapper.compute(new, saved, compiler_options=tasks.run_once())
  saved = checkpoints.restore_all(totals.steps, old)
  fresh = mappers.replicate(experiment.init(), len(workers))
  state = resize.resize(saved, fresh, experiment.strategy, workers, rule, step)
  return mappers.place(state, mapper)


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
  workers = processes.local_workers(experiment.workers)
  if record is None:
    return fresh(experiment, workers), None
  line = f'resuming from step {totals.steps}'
  if record['workers'] == experiment.workers:
    return resumed(experiment, workers, checkpoints, totals.steps), line
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
  return resized(experiment, workers, checkpoints, totals, saved, rule), line
