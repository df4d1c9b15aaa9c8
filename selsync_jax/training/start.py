"""The state in which a run starts: fresh, resumed, or resized."""

from collections.abc import Callable, Mapping
from typing import Any

from selsync_jax.config import ConfigError
from selsync_jax.devices import arrays
from selsync_jax.devices import backend
from selsync_jax.models import tasks
from selsync_jax.runs.ledger import Totals
from selsync_jax.runs.session import Session
from selsync_jax.sync import replicas
from selsync_jax.sync.traffic import nbytes
from selsync_jax.training import resize
from selsync_jax.training.problem import Problem
from selsync_jax.training.recorder import refuse_unequal
from selsync_jax.training.setup import Plan
from selsync_jax.training.setup import Setup
from selsync_jax.training.step import TrainState


def totals(
  problem: Problem, plan: Plan, record: Mapping[str, Any] | None
) -> Totals:
  """Returns the totals of a run so far, for the plan's number of workers.

  Args:
    problem: what is trained.
    plan: where the run takes place.
    record: the newest checkpoint's record; `None` for a new run.
  """
  if record is None:
    return Totals()
  saved = Totals(**record['totals'])
  if record['workers'] != plan.workers:
    position = round(record['epoch'] * problem.steps_per_epoch)
    saved.shift = position - saved.steps
    saved.skips = []  # They count by worker.
  return saved


def check_size(problem: Problem, devices: int = 1) -> None:
  """Raises `ConfigError` if one worker's parameters fit into no memory.

  Args:
    problem: what is trained.
    devices: the devices of a worker.
  """
  needed = nbytes(problem.shapes['params']) / devices
  if needed > (memory := backend.memory()):
    raise ConfigError(
      f'config.model: the parameters of a worker take {needed / 1e9:,.3g} GB '
      f'of a device, which has {memory / 1e9:,.3g} GB'
    )


def state(setup: Setup, session: Session, totals: Totals) -> TrainState:
  """Returns the state of this process's workers; prints where it comes from.

  Args:
    setup: the run.
    session: the run's session, with the checkpoint if there is one.
    totals: the totals so far; a resize changes them if no step would be left.
  """
  problem, plan, record = setup.problem, setup.plan, session.record
  session.say('compiling')
  if record is None:
    return fresh(setup)
  line = f'resuming from step {totals.steps}'
  if record['workers'] == plan.workers:
    restored = session.restore(plan.mapper.abstract(setup.shapes))
  else:
    # Rounding must not end a run that has not finished.
    totals.shift -= max(0, totals.position + 1 - problem.steps)
    line += (
      f' with {plan.workers} workers instead of {record["workers"]}: '
      f'parameters from the consensus, optimizer state by {plan.resize}, '
      f'batches of {problem.batch_size}, '
      f'learning rate {problem.peak_rate:.3g}, '
      f'trigger state reset, data at epoch {record["epoch"]:.2f}'
    )
    restored = _resized(setup, session, record['workers'], totals.position)
  session.say(line)
  return restored


def fresh(setup: Setup) -> TrainState:
  """Returns the workers' state before the first step, on their devices.

  Raises:
    RunError: if the workers do not start with the same parameters.
  """
  mapper = setup.plan.mapper
  state = mapper.replicate(_init(setup), tasks.run_once())
  if setup.plan.check_replicas:
    differs = mapper.map_workers(replicas.first_difference)
    leaf = int(arrays.local_values(differs(state.params))[0])
    refuse_unequal(leaf, replicas.leaf_names(state.params), 0)
  return state


def _init(setup: Setup) -> Callable[[], TrainState]:
  """Returns the function that makes one worker's state."""
  return setup.traced_init if setup.plan.mapper.compiles else setup.init


def _resized(
  setup: Setup, session: Session, workers: int, step: int
) -> TrainState:
  """Returns the state, from a checkpoint of another number of workers.

  Args:
    setup: the run with the new workers.
    session: the run's session, with the checkpoint.
    workers: the number of workers that saved it.
    step: the optimizer step that the new workers have reached.
  """
  mapper, init = setup.plan.mapper, _init(setup)
  saved = session.restore(mapper.abstract_saved(setup.shapes, workers))

  def new(saved):
    fresh, rule = mapper.stack(init()), setup.plan.resize
    return resize.resize(saved, fresh, setup.strategy, mapper.held, rule, step)

  return mapper.compute(new, saved, compiler_options=tasks.run_once())
