"""Resuming a run with another number of workers.

Parameters and model state start from the consensus. The optimizer state is
averaged, or cloned from the old workers in turn. Every part of the method
declares how to resize its own state, see `sync.resizing`. The workers divide
the old total batch among them, or each keeps its batch size; the learning rate
and the length in steps are scaled accordingly.
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

# By rule, the new batch size per worker. `times` is the ratio of new to old
# workers; a worker's batch is shared by its `devices`.
BATCH_SIZE = {
  'total': lambda size, times, devices: (
    devices * max(1, round(size / times / devices))
  ),
  'worker': lambda size, times, devices: size,
}


def fit(settings: Settings, record: Mapping[str, Any] | None) -> Settings:
  """Returns settings with batch size, learning rate and length scaled.

  The learning rate is proportional to the total batch of all workers (Goyal et
  al. 2017, section 2.1). The config's learning rate and numbers of steps are
  for the total batch with which the run began, so the schedule keeps its length
  in samples.

  Args:
    settings: the run's settings, with the new number of workers.
    record: the last checkpoint's `workers`, `batch_size` per worker, and
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
  )


def resize(
  saved: TrainState,
  fresh: TrainState,
  strategy: Strategy,
  workers: range,
  rule: str,
  step: int,
) -> TrainState:
  """Returns the state of some of the new workers.

  Args:
    saved: the state of all old workers, stacked.
    fresh: the state of these new workers before their first step, stacked.
    strategy: the method, whose parts resize their own states.
    workers: the indices of these new workers.
    rule: the rule for the optimizer's state, a name in `OPTIMIZER_STATE`.
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
  """Whether a node is the state of a schedule: a count of steps alone.

  A count beside moments is the number of their updates, by which Adam corrects
  their bias.
  """
  return getattr(node, '_fields', ()) == ('count',)
