"""A run that resumes with another number of workers.

Parameters and model state start from the consensus. The optimizer state is
averaged, or cloned from the old workers in turn. Every part of the method
declares what becomes of its own state, see `sync.resizing`. The workers divide
the old total batch among them, or each keeps its batch size, and the learning
rate and the length in steps follow.
"""

from collections.abc import Mapping
import math
from typing import Any

import jax
import numpy as np

from selsync_jax.sync import resizing
from selsync_jax.sync.strategy import Strategy
from selsync_jax.training.settings import check_mesh
from selsync_jax.training.settings import Settings
from selsync_jax.training.step import PARTS
from selsync_jax.training.step import TrainState


def _clone(saved, fresh, workers, step):
  del fresh, step
  return jax.tree.map(lambda x: x[np.asarray(workers) % len(x)], saved)


OPTIMIZER_STATE: dict[str, resizing.Resize] = {
  'mean': resizing.mean,
  'clone': _clone,
}

# The new batch size per worker, if the number of workers is multiplied by
# `times` and a worker has some `devices`, which share its batch.
BATCH_SIZE = {
  'total': lambda size, times, devices: (
    devices * max(1, round(size / times / devices))
  ),
  'worker': lambda size, times, devices: size,
}


def fit(settings: Settings, record: Mapping[str, Any] | None) -> Settings:
  """The settings with batch size, learning rate and length for the workers.

  The learning rate is proportional to the batch of all workers together (Goyal
  et al. 2017, section 2.1). Fields that count steps mean those of the batch
  with which the run began, as the config's learning rate does; so the schedule
  keeps its length in samples.

  Args:
    settings: the run's settings, with the workers that continue.
    record: what the last checkpoint says: `workers`, `batch_size` of each, and
      `learning_rate`; `None` for a new run.
  """
  if record is None:
    return settings
  config = settings.config.copy_and_resolve_references()
  times, size = config.workers / record['workers'], record['batch_size']
  if times == 1:
    config.batch_size = size
  else:
    devices = math.prod(config.mesh.values())
    rule = BATCH_SIZE[config.checkpoint.resize_batch]
    config.batch_size = rule(size, times, devices)
  check_mesh(config)  # Its devices may be others than the record's.
  batch = times * config.batch_size / size  # Of all workers; 1 is unchanged.
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
  )


def resize(
  saved: TrainState,
  fresh: TrainState,
  strategy: Strategy,
  workers: range,
  rule: str,
  step: int,
) -> TrainState:
  """The state of some of the new workers.

  Args:
    saved: of all old workers, stacked.
    fresh: of the new workers wanted, stacked, before their first step.
    strategy: the method, whose parts know what becomes of their states.
    workers: indices of the new workers wanted.
    rule: for the optimizer's state, a name in `OPTIMIZER_STATE`.
    step: the optimizer step that the new workers have reached; schedules and
      random numbers continue from there.
  """

  def resized(field, rule):
    return rule(getattr(saved, field), getattr(fresh, field), workers, step)

  steps = np.full((len(workers),), step, np.int32)
  optimizer = jax.tree.map(
    lambda node: node._replace(count=steps) if _is_schedule(node) else node,
    resized('opt_state', OPTIMIZER_STATE[rule]),
    is_leaf=_is_schedule,
  )
  return fresh.replace(
    step=steps,
    syncs=resized('syncs', resizing.first),
    params=resized('params', resizing.mean),
    model_state=resized('model_state', resizing.mean),
    opt_state=optimizer,
    **{
      field: resized(field, getattr(strategy, part).resize)
      for field, part in PARTS.items()
    },
  )


def _is_schedule(node: Any) -> bool:
  """Whether it is the state of a schedule: a count of steps, and no more.

  A count beside moments says how many updates they have seen, by which Adam
  corrects their bias.
  """
  return getattr(node, '_fields', ()) == ('count',)
