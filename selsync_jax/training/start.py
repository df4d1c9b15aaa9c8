"""The state in which a run starts: fresh, resumed, or resized."""

from collections.abc import Mapping
from typing import Any

from selsync_jax.devices import arrays
from selsync_jax.devices import mappers
from selsync_jax.devices import processes
from selsync_jax.devices.layout import Layout
from selsync_jax.models import tasks
from selsync_jax.runs.ledger import Totals
from selsync_jax.runs.session import Session
from selsync_jax.sync import replicas
from selsync_jax.training import resize
from selsync_jax.training.problem import Problem
from selsync_jax.training.recorder import refuse_unequal
from selsync_jax.training.setup import Plan
from selsync_jax.training.setup import Setup
from selsync_jax.training.step import TrainState


def totals(
  problem: Problem, plan: Plan, record: Mapping[str, Any] | None
) -> Totals:
  """Returns where a run stands, in steps of the plan's number of workers.

  Args:
    problem: what is trained.
    plan: where.
    record: the newest checkpoint's; none for a new run.
  """
  if record is None:
    return Totals()
  saved = Totals(**record['totals'])
  if record['workers'] != plan.workers:
    position = round(record['epoch'] * problem.steps_per_epoch)
    saved.shift = position - saved.steps
    saved.skips = []  # Other workers than those that skipped.
  return saved


def state(setup: Setup, session: Session, totals: Totals) -> TrainState:
  """Returns the state of this process's workers; says where it comes from.

  Args:
    setup: the run.
    session: has the checkpoint, if there is one.
    totals: where the run stands; a resize leaves it a step at least.
  """
  problem, plan, record = setup.problem, setup.plan, session.record
  session.say('compiling')
  workers = processes.local_workers(plan.workers)
  if record is None:
    return fresh(setup, workers)
  line = f'resuming from step {totals.steps}'
  if record['workers'] == plan.workers:
    like = mappers.abstract_state(setup.shapes, len(workers), plan.mapper)
    restored = session.restore(like)
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
    restored = _resized(setup, workers, session, totals.position)
  session.say(line)
  return restored


def fresh(setup: Setup, workers: range) -> TrainState:
  """Returns the state of some workers before the first step, on their devices.

  Args:
    setup: the run.
    workers: indices of this process's workers.

  Raises:
    RunError: if the workers do not start with the same parameters.
  """
  mapper = setup.plan.mapper
  if isinstance(mapper, Layout):  # No device may have room for all of it.
    state = mapper.create(setup.traced_init, tasks.run_once())
  else:
    stacked = mappers.replicate(setup.init(), len(workers))
    state = mappers.place(stacked, mapper)
  if setup.plan.check_replicas:
    differs = mappers.map_workers(replicas.first_difference, mapper)
    leaf = int(arrays.local_values(differs(state.params))[0])
    refuse_unequal(leaf, replicas.leaf_names(state.params), 0)
  return state


def _resized(
  setup: Setup, workers: range, session: Session, step: int
) -> TrainState:
  """Returns workers' state, from a checkpoint of another number of workers.

  Args:
    setup: the run of the workers that continue.
    workers: indices of this process's workers.
    session: has the checkpoint.
    step: the optimizer step that the workers have reached.
  """
  assert session.record is not None, 'only a run that was saved is resized'
  old = mappers.abstract(setup.shapes, session.record['workers'])
  mapper, rule = setup.plan.mapper, setup.plan.resize
  if isinstance(mapper, Layout):
    saved = session.restore(mappers.split(old, mapper.spread))

    def new(saved):
      fresh = mapper.stack(setup.traced_init())
      every = range(mapper.workers)
      return resize.resize(saved, fresh, every, rule, step)

    return mapper.compute(new, saved, compiler_options=tasks.run_once())
  saved = session.restore_all(old)
  fresh = mappers.replicate(setup.init(), len(workers))
  return mappers.place(resize.resize(saved, fresh, workers, rule, step), mapper)
