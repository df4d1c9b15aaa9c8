"""Optimizers and learning-rate schedules by name, from optax."""

import inspect
from typing import Any

import optax

from selsync_jax.config import pick


def create(
  name: str, learning_rate: optax.ScalarOrSchedule, **options: Any
) -> optax.GradientTransformation:
  """One of optax's optimizers.

  Args:
    name: of a function in optax that takes a learning rate.
    learning_rate: a number or a schedule over optimizer steps.
    **options: arguments of that function; `None` leaves its default.
      `weight_decay` is L2 regularisation, added to the gradient, for an
      optimizer that has no decay of its own; `clip_norm` clips the gradient's
      global norm before everything else.

  Raises:
    ValueError: if optax has no such optimizer, or it no such argument.
  """
  make = getattr(optax, name, None)
  accepted = inspect.signature(make).parameters if callable(make) else {}
  if not callable(make) or 'learning_rate' not in accepted:
    raise ValueError(f'name={name!r} is not an optimizer of optax')
  options = {k: v for k, v in options.items() if v is not None}
  before = []
  if 'clip_norm' in options:
    before.append(optax.clip_by_global_norm(options.pop('clip_norm')))
  if 'weight_decay' in options and 'weight_decay' not in accepted:
    before.append(optax.add_decayed_weights(options.pop('weight_decay')))
  for option, value in options.items():
    if option not in accepted:
      raise ValueError(f'{option}={value!r}: {name} takes no {option}')
  return optax.chain(*before, make(learning_rate, **options))


SHAPES = {
  'constant': lambda peak, steps: optax.constant_schedule(peak),
  'cosine': optax.cosine_decay_schedule,
}


def schedule(
  name: str, peak: float, *, warmup_steps: int, steps: int
) -> optax.Schedule:
  """The learning rate as a function of the optimizer step.

  Args:
    name: the shape after the warm-up: `constant`, or `cosine` to 0 at the end.
    peak: the learning rate after the warm-up.
    warmup_steps: length of the linear rise from 0; 0 is none.
    steps: of the whole run, the warm-up included. A run may end before its
      warm-up does.

  Raises:
    ValueError: if the name is unknown or the warm-up negative.
  """
  shape = pick(SHAPES, name)
  if warmup_steps < 0:
    raise ValueError(f'warmup must be at least 0, got {warmup_steps} steps')
  if not warmup_steps:
    return shape(peak, steps)
  warmup = optax.linear_schedule(0.0, peak, warmup_steps)
  return optax.join_schedules(
    [warmup, shape(peak, max(1, steps - warmup_steps))], [warmup_steps]
  )
