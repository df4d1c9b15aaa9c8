"""Optimizers and learning-rate schedules of optax, by name."""

from collections.abc import Mapping
import inspect
from typing import Any
import warnings

import jax
import optax

from selsync_jax.config import FLAG
from selsync_jax.config import keyword_arguments
from selsync_jax.config import lookup
from selsync_jax.config import number
from selsync_jax.config import numbers
from selsync_jax.config import one_of
from selsync_jax.config import optional
from selsync_jax.config import share
from selsync_jax.config import TEXT
from selsync_jax.config import whole


def _matrices(params: Any) -> Any:
  """Selects parameters with more than one axis: no biases, no norm scales."""
  return jax.tree.map(lambda p: p.ndim > 1, params)


# By name, the mask of optax's weight decay.
DECAYED = {'all': None, 'matrices': _matrices}

RULES = {
  'name': TEXT,
  'learning_rate': number(least=0),
  'decayed': one_of(*DECAYED),
  'clip_norm': optional(number(above=0)),
  'weight_decay': optional(number(least=0)),
  'nesterov': optional(FLAG),
  **dict.fromkeys(
    ('momentum', 'b1', 'b2', 'b3', 'decay', 'decay_rate'), optional(share())
  ),
  'eps': optional(number(least=0)),
}
"""Of the arguments that several optimizers share."""

SCHEDULE_RULES = {
  'name': TEXT,
  'warmup_epochs': number(least=0, most=1e6),
  'milestones': optional(numbers(above=0)),
  'period': optional(whole(1)),
  'factor': optional(number(above=0)),
}


def _set(options: Mapping[str, Any]) -> dict[str, Any]:
  return {k: v for k, v in options.items() if v is not None}


def _mask_name(accepted: Mapping[str, Any]) -> str | None:
  """What an optimizer calls the mask of its own weight decay."""
  names = ('mask', 'weight_decay_mask')
  return next((name for name in names if name in accepted), None)


def check_optimizer(name: str, *, decayed: str = 'all', **options: Any) -> None:
  """Raises `ValueError` as `create_optimizer` does; creates nothing."""
  with warnings.catch_warnings(action='ignore'):  # Of moved optimizers.
    make = getattr(optax, name, None)
  accepted = inspect.signature(make).parameters if callable(make) else {}
  if 'learning_rate' not in accepted:
    raise ValueError(f'name={name!r} is not an optimizer of optax')
  options = _set(options)
  for option, value in {'decayed': decayed, **options}.items():
    if option in RULES and (message := RULES[option].broken(value)):
      raise ValueError(f'{option}={value!r}: {message}')
  known = {*accepted, 'clip_norm', 'weight_decay'}
  if foreign := [option for option in options if option not in known]:
    raise ValueError(
      f'{name} takes no {", ".join(foreign)}; set '
      + ', '.join(f'{option}=None' for option in foreign)
    )
  missing = [
    option
    for option, p in accepted.items()
    if p.default is p.empty
    and option not in ('learning_rate', *options)
    # Not *args and **kwargs.
    and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
  ]
  if missing:
    raise ValueError(f'{name} needs {", ".join(missing)}')
  own = getattr(accepted.get('weight_decay'), 'default', None)
  decays = own is not None and options.get('weight_decay', own)
  if DECAYED[decayed] and decays and not _mask_name(accepted):
    raise ValueError(
      f'decayed={decayed!r}: must be all, as {name} decays all parameters'
    )


def create_optimizer(
  name: str,
  learning_rate: optax.ScalarOrSchedule,
  *,
  decayed: str = 'all',
  **options: Any,
) -> optax.GradientTransformation:
  """Creates an optimizer.

  Args:
    name: of a function in optax that takes a learning rate.
    learning_rate: a number, or a schedule over optimizer steps.
    decayed: the parameters with weight decay: `all`, or only `matrices`.
    **options: arguments of that function; `None` means its default. Two more
      are understood. `clip_norm` clips the global norm of the gradient before
      everything else. `weight_decay`, if the function does not take it, is L2
      regularization: it is added to the gradient.

  Raises:
    ValueError: if optax has no such optimizer, or the optimizer no such
      argument.
  """
  check_optimizer(name, decayed=decayed, **options)
  with warnings.catch_warnings(action='ignore'):
    make = getattr(optax, name)
  accepted = inspect.signature(make).parameters
  mask, options = DECAYED[decayed], _set(options)
  transformations = []
  if 'clip_norm' in options:
    clip = optax.clip_by_global_norm(options.pop('clip_norm'))
    transformations.append(clip)
  if 'weight_decay' in options and 'weight_decay' not in accepted:
    decay = optax.add_decayed_weights(options.pop('weight_decay'), mask)
    transformations.append(decay)
  if mask and (mask_name := _mask_name(accepted)):
    options[mask_name] = mask
  return optax.chain(*transformations, make(learning_rate, **options))


def _constant(peak, steps):
  del steps
  return optax.constant_schedule(peak)


def _cosine(peak, steps):
  return optax.cosine_decay_schedule(peak, steps)


def _milestones(peak, steps, *, milestones, factor):
  del steps
  return optax.piecewise_constant_schedule(
    peak, dict.fromkeys(milestones, factor)
  )


def _staircase(peak, steps, *, period, factor):
  del steps
  return optax.exponential_decay(peak, period, factor, staircase=True)


SCHEDULES = {
  'constant': _constant,
  'cosine': _cosine,
  'milestones': _milestones,
  'staircase': _staircase,
}


def check_schedule(name: str, **fields: Any) -> None:
  """Raises `ValueError` as `create_schedule` does; creates nothing."""
  keyword_arguments(lookup(SCHEDULES, name), name, fields)
  for field, value in fields.items():
    if message := SCHEDULE_RULES[field].broken(value):
      raise ValueError(f'{field} {message}, got {value!r}')


def create_schedule(
  name: str, peak: float, *, warmup_steps: int, steps: int, **fields: Any
) -> optax.Schedule:
  """Creates a learning-rate schedule over optimizer steps.

  Args:
    name: the schedule after warmup: `constant`; `cosine`, which decays to 0 at
      the end; `milestones`, multiplied by `factor` at each of the steps
      `milestones` of the run; `staircase`, multiplied by `factor` every
      `period` steps after warmup.
    peak: the learning rate after warmup.
    warmup_steps: number of steps of the linear increase from 0.
    steps: length of the run, including warmup. It may be shorter than warmup.
    **fields: `milestones`, `factor` and `period`, of the schedules that have
      them; `None` means not set.

  Raises:
    ValueError: if the name is unknown, the warmup is negative, or a field is
      missing, not the schedule's, or out of range.
  """
  check_schedule(name, **fields)
  if warmup_steps < 0:
    raise ValueError(f'warmup must be at least 0, got {warmup_steps} steps')
  decay, fields = SCHEDULES[name], _set(fields)
  if not warmup_steps:
    return decay(peak, steps, **fields)
  if 'milestones' in fields:  # The second schedule counts from its own start.
    fields['milestones'] = [m - warmup_steps for m in fields['milestones']]
  warmup = optax.linear_schedule(0.0, peak, warmup_steps)
  after = decay(peak, max(1, steps - warmup_steps), **fields)
  return optax.join_schedules([warmup, after], [warmup_steps])
