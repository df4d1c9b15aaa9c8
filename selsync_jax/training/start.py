"""How a run starts: fresh, resumed, or resized to another number of workers.

After a resize, parameters and model state start from the consensus. The
optimizer state is averaged, or cloned from the old workers in turn. Every part
of the method declares how to resize its own state, see `sync.resizing`. The
workers divide the old total batch among them, or each keeps its batch size; the
learning rate and the length in steps are scaled accordingly.
"""

from collections.abc import Mapping
import math
from typing import Any

import jax
import numpy as np

from selsync_jax.array_names import by_name
from selsync_jax.config import ConfigError
from selsync_jax.devices import arrays, backend
from selsync_jax.devices.mappers import Mapper
from selsync_jax.models import tasks
from selsync_jax.optimizers import move_schedules
from selsync_jax.runs.ledger import refuse_unequal, Totals
from selsync_jax.runs.store import Store
from selsync_jax.sync import replicas, resizing
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.traffic import nbytes
from selsync_jax.training.problem import Problem
from selsync_jax.training.settings import check_mesh, Settings
from selsync_jax.training.setup import Setup
from selsync_jax.training.step import PARTS, TrainState

Record = Mapping[str, Any]  # See `checkpoints`.


def _clone(saved, fresh, workers, step):
  del fresh, step
  return jax.tree.map(lambda x: x[np.asarray(workers) % len(x)], saved)


OPTIMIZER_STATE: dict[str, resizing.Resize] = {
  'mean': resizing.mean,
  'clone': _clone,
}


def adapt(settings: Settings, record: Record | None) -> Settings:
  """Returns settings with batch size, learning rate and length scaled.

  Weights come from the checkpoint, so their source is dropped.

  The learning rate is proportional to the total batch of all workers (Goyal et
  al. 2017, section 2.1). The config's learning rate and numbers of steps are
  for the total batch with which the run began, so the schedule keeps its length
  in samples.
  """
  if record is None:
    return settings
  config = settings.config.copy_and_resolve_references()
  times, size = config.workers / record['workers'], record['batch_size']
  config.batch_size = size
  if times != 1 and config.checkpoint.resize_batch == 'total':
    unit = config.accumulate * math.prod(config.mesh.values())
    config.batch_size = unit * max(1, round(size / times / unit))
  check_mesh(config)  # The mesh may differ from the checkpoint's.
  batch = times * config.batch_size / size  # The ratio of total batches.
  peak, rate = settings.learning_rate, record['learning_rate'] * batch

  def stretched(steps):
    return max(1, round(steps * peak / rate)) if peak and rate else steps

  schedule = settings.schedule
  if config.steps:
    config.steps = stretched(config.steps)
  if 'period' in schedule.arguments:
    period = stretched(schedule.arguments['period'])
    schedule = schedule.changed(period=period)
  return settings._replace(
    config=config,
    optimizer=settings.optimizer.changed(learning_rate=rate),
    schedule=schedule,
    source=None,
  )


def totals(problem: Problem, mapper: Mapper, record: Record | None) -> Totals:
  """Returns the totals of a run so far, for the mapper's number of workers.

  Raises `ConfigError` if the run cannot resume with this number.
  """
  if record is None:
    return Totals()
  saved = Totals(**record['totals'])
  mapper.check_saved(record['workers'])
  if record['workers'] != mapper.workers:
    position = round(record['epoch'] * problem.steps_per_epoch)
    saved.shift = position - saved.steps
    saved.skips = []  # They count by worker.
  return saved


def check_size(problem: Problem, devices: int = 1) -> None:
  """Raises `ConfigError` if a worker's parameters do not fit on its devices."""
  needed = nbytes(problem.shapes['params']) / devices
  if needed > (memory := backend.memory()):
    raise ConfigError(
      f'config.model: the parameters of a worker take {needed / 1e9:,.3g} '
      f'GB, but a device has {memory / 1e9:,.3g} GB'
    )


def state(setup: Setup, store: Store, totals: Totals) -> TrainState:
  """Returns the state of this process's workers; prints where it comes from.

  A resize changes the totals if no step would be left.
  """
  problem, mapper, record = setup.problem, setup.mapper, store.record
  store.say('compiling')
  if record is None:
    started = init(setup)
    problem.forget_given()
    return started
  line = f'resuming from step {totals.steps}'
  restore = store.checkpoints.restore
  shapes, old = setup.shapes, record['workers']
  if old == mapper.workers:
    restored = restore(mapper.abstract(shapes))
  else:
    # Rounding must not end a run that has not finished.
    totals.shift -= max(0, totals.position + 1 - problem.steps)
    line += (
      f' with {mapper.workers} workers instead of {old}: '
      f'parameters from the consensus, optimizer state by '
      f'{setup.config.checkpoint.resize}, batches of {problem.batch_size}, '
      f'learning rate {problem.peak_rate:.3g}, '
      f'trigger state reset, data at epoch {record["epoch"]:.2f}'
    )
    saved = restore(mapper.abstract_saved(shapes, old))
    restored = _resized(setup, saved, totals.position)
  store.say(line)
  return restored


def init(setup: Setup) -> TrainState:
  """Returns the workers' state before the first step, on their devices.

  It refuses workers that do not start with the same parameters.
  """
  mapper, state = setup.mapper, setup.initial()
  if setup.config.check_replicas_every:
    differs = mapper.map_workers(replicas.first_difference)
    leaf = int(arrays.local_values(differs(state.params))[0])
    refuse_unequal(leaf, [*by_name(state.params)], 0)
  return state


def _resized(setup: Setup, saved: TrainState, step: int) -> TrainState:
  """Returns the new workers' state at a step, from the old workers' state."""
  mapper, rule = setup.mapper, setup.config.checkpoint.resize

  def new(saved):
    fresh = mapper.stack(setup.init({}))
    return resize(saved, fresh, setup.strategy, mapper.rows, rule, step)

  return mapper.compute(new, saved, compiler_options=tasks.run_once())


def resize(
  saved: TrainState,
  fresh: TrainState,
  strategy: Strategy,
  workers: range,
  rule: str,
  step: int,
) -> TrainState:
  """Returns the state of some of the new workers, stacked.

  `saved` is the state of all old workers, and `fresh` the state of these new
  workers before their first step. Schedules and random numbers continue from
  `step`. `rule` is a name in `OPTIMIZER_STATE`.
  """

  def resized(field, rule):
    return rule(getattr(saved, field), getattr(fresh, field), workers, step)

  steps = np.full((len(workers),), step, np.int32)
  optimizer = move_schedules(
    resized('opt_state', OPTIMIZER_STATE[rule]), lambda count: steps
  )
  copies, frozen = fresh.copies, fresh.frozen
  moved = resizing.mean(copies.take(saved.opt_state), None, workers, step)
  same = resizing.first(frozen.take(saved.params), None, workers, step)
  optimizer = copies.put(optimizer, moved)
  params = frozen.put(resized('params', resizing.mean), same)
  return fresh.replace(
    step=steps,
    syncs=resized('syncs', resizing.first),
    params=params,
    model_state=resized('model_state', resizing.mean),
    opt_state=optimizer,
    ema=resized('ema', resizing.mean),
    **{
      field: resized(field, getattr(strategy, part).resize)
      for field, part in PARTS.items()
    },
  )
