"""A run that resumes with another number of workers.

Parameters and model state start from the consensus. The optimizer state is
averaged, or cloned from the old workers in turn. Error memories are averaged:
the next average then carries what the old workers had yet to send. What
triggers and reducers have measured otherwise belongs to the old number of
workers, so it is reset. The workers divide the old total batch among them,
or each keeps its batch size, and the learning rate and the length in steps
follow.
"""

from collections.abc import Mapping
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from selsync_jax.training.settings import Settings
from selsync_jax.training.step import TrainState


def _mean(leaf, workers):
  """The mean over the old workers; of a counter, the first one's."""
  if np.issubdtype(leaf.dtype, np.integer) or leaf.dtype == bool:
    return _first(leaf, workers)
  wide = jnp.promote_types(leaf.dtype, np.float32)
  mean = leaf.mean(axis=0, keepdims=True, dtype=wide)
  return _first(mean.astype(leaf.dtype), workers)


def _first(leaf, workers):
  # On the host, or in a compiled program.
  library = jnp if isinstance(leaf, jax.Array) else np
  return library.broadcast_to(leaf[0], (len(workers), *leaf.shape[1:]))


def _clone(leaf, workers):
  return leaf[np.asarray(workers) % len(leaf)]


OPTIMIZER_STATE = {'mean': _mean, 'clone': _clone}

# Fields of the state of triggers, averagers and reducers that go on.
_CARRIED = {
  'error': _mean,
  'log_threshold': _first,
  'threshold': _first,
  'q': _first,
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
  workers: range,
  rule: str,
  step: int,
) -> TrainState:
  """The state of some of the new workers.

  Args:
    saved: of all old workers, stacked.
    fresh: of the new workers wanted, stacked, before their first step.
    workers: indices of the new workers wanted.
    rule: for the optimizer's state, a name in `OPTIMIZER_STATE`.
    step: the optimizer step that the new workers have reached; schedules and
      random numbers continue from there.
  """

  def spread(how, tree):
    return jax.tree.map(lambda leaf: how(leaf, workers), tree)

  steps = np.full((len(workers),), step, np.int32)
  optimizer = jax.tree.map(
    lambda node: node._replace(count=steps) if _is_schedule(node) else node,
    spread(OPTIMIZER_STATE[rule], saved.opt_state),
    is_leaf=_is_schedule,
  )

  def carried(part, otherwise):
    """The state of a part; fields that are not named here, `otherwise`."""

    def leaf(path, old, new):
      name = _field(path)
      if name == 'step':
        return np.full(new.shape, step, new.dtype)
      how = _CARRIED.get(name, otherwise)
      return how(old, workers) if how else new

    return jax.tree_util.tree_map_with_path(
      leaf, getattr(saved, part), getattr(fresh, part)
    )

  return fresh.replace(
    step=steps,
    syncs=_first(saved.syncs, workers),
    **spread(_mean, saved.shared),
    opt_state=optimizer,
    trigger_state=carried('trigger_state', None),
    reducer_state=carried('reducer_state', None),
    averager_state=carried('averager_state', _first),
    moments_state=carried('moments_state', _first),
  )


def _is_schedule(node: Any) -> bool:
  """Whether it is the state of a schedule: a count of steps, and no more.

  A count beside moments says how many updates they have seen, by which Adam
  corrects their bias.
  """
  return getattr(node, '_fields', ()) == ('count',)


def _field(path: tuple[Any, ...]) -> str:
  """The innermost named field on the way to a leaf."""
  names = [key.name for key in path if hasattr(key, 'name')]
  return names[-1] if names else ''
