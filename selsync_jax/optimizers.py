"""Optimizers and learning-rate schedules of optax, by name."""

from collections.abc import Callable, Mapping, Sequence
import inspect
from typing import Any, Literal
import warnings

import jax
import optax

from selsync_jax.config import bind
from selsync_jax.config import Bound
from selsync_jax.config import config_errors
from selsync_jax.config import Count
from selsync_jax.config import NonNegative
from selsync_jax.config import Positive
from selsync_jax.config import set_fields
from selsync_jax.config import Share


def _matrices(params: Any) -> Any:
  """Selects parameters with more than one axis: no biases, no norm scales."""
  return jax.tree.map(lambda p: p.ndim > 1, params)


# By name, the mask of optax's weight decay.
DECAYED = {'all': None, 'matrices': _matrices}

_ARGUMENTS: dict[str, Any] = {
  'learning_rate': NonNegative,
  'decayed': Literal['all', 'matrices'],
  'clip_norm': Positive,
  'weight_decay': NonNegative,
  'nesterov': bool,
  **dict.fromkeys(('momentum', 'b1', 'b2', 'b3', 'decay', 'decay_rate'), Share),
  'eps': NonNegative,
}
"""The rules of arguments that several of optax's optimizers have, and of ours;
optax declares none."""


def _constructor(name: Any) -> Callable[..., optax.GradientTransformation]:
  """A function of optax that takes a learning rate, with our arguments added.

  Its signature has `decayed`, `clip_norm` and `weight_decay` besides its own.

  Raises:
    ValueError: if there is none of this name.
  """
  with warnings.catch_warnings(action='ignore'):  # Of moved optimizers.
    make = getattr(optax, name, None) if isinstance(name, str) else None
  own = dict(inspect.signature(make).parameters) if callable(make) else {}
  if make is None or 'learning_rate' not in own:
    raise ValueError(f'{name!r} is not an optimizer of optax')
  masks = [mask for mask in ('mask', 'weight_decay_mask') if mask in own]

  def create(learning_rate, *, decayed='all', clip_norm=None, **options):
    mask, before = DECAYED[decayed], []
    default = getattr(own.get('weight_decay'), 'default', None)
    decays = default is not None and options.get('weight_decay', default)
    if mask and decays and not masks:
      raise ValueError(
        f'decayed={decayed!r}: must be all, as {name} decays all parameters'
      )
    if clip_norm is not None:
      before.append(optax.clip_by_global_norm(clip_norm))
    if 'weight_decay' in options and 'weight_decay' not in own:
      decay = optax.add_decayed_weights(options.pop('weight_decay'), mask)
      before.append(decay)
    if mask and masks:
      options[masks[0]] = mask
    return optax.chain(*before, make(learning_rate, **options))

  defaults = {'decayed': 'all', 'clip_norm': None, 'weight_decay': None}
  defaults |= {
    p.name: p.default
    for p in own.values()
    if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)  # No **kwargs.
  }
  signature = inspect.Signature(
    [
      inspect.Parameter(
        argument,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=_ARGUMENTS.get(argument, Any),
      )
      for argument, default in defaults.items()
    ]
  )
  setattr(create, '__signature__', signature)  # noqa: B010
  return create


def bind_optimizer(fields: Mapping[str, Any], path: str = 'optimizer') -> Bound:
  """Binds the fields of an optimizer; see `create_optimizer`.

  Args:
    fields: `name`, `learning_rate`, and arguments of the optimizer; `None`
      means the argument's default.
    path: the place of the fields in the config, for messages.

  Returns:
    The optimizer, once it is called. A `learning_rate` in that call replaces
    the one in the fields, a schedule for example.

  Raises:
    ConfigError: if optax has no such optimizer, or the optimizer no such
      argument, or a value breaks its rule.
  """
  name: Any = fields.get('name')
  with config_errors(f'{path}.name'):
    constructor = _constructor(name)
  return bind({name: constructor}, set_fields(fields), path)


def create_optimizer(
  name: str, learning_rate: optax.ScalarOrSchedule, **options: Any
) -> optax.GradientTransformation:
  """Creates an optimizer.

  Args:
    name: the name of a function in optax that takes a learning rate.
    learning_rate: a number, or a schedule over optimizer steps.
    **options: arguments of that function; `None` means its default. Three more
      are understood. `clip_norm` clips the global norm of the gradient before
      everything else. `weight_decay`, if the function does not take it, is L2
      regularization: it is added to the gradient. `decayed` selects the
      parameters with weight decay: `all`, or only `matrices`.

  Raises:
    ConfigError: if optax has no such optimizer, or the optimizer no such
      argument, or a value breaks its rule.
  """
  fields = {'name': name, 'learning_rate': 0.0, **options}
  return bind_optimizer(fields)(learning_rate=learning_rate)


def _constant(peak, steps):
  """The learning rate stays as it is."""
  del steps
  return optax.constant_schedule(peak)


def _cosine(peak, steps):
  """It decays to 0 at the end of the run, as a cosine."""
  return optax.cosine_decay_schedule(peak, steps)


def _milestones(
  peak, steps, *, milestones: Sequence[Positive], factor: Positive
):
  """It is multiplied at some points of the run.

  Args:
    peak: the learning rate after warmup.
    steps: the length of the run.
    milestones: the points, in epochs from the start of the run.
    factor: what it is multiplied by.
  """
  del steps
  scales: dict[Any, Any] = dict.fromkeys(milestones, factor)  # By step.
  return optax.piecewise_constant_schedule(peak, scales)


def _staircase(peak, steps, *, period: Count, factor: Positive):
  """It is multiplied again and again.

  Args:
    peak: the learning rate after warmup.
    steps: the length of the run.
    period: the steps from one multiplication to the next.
    factor: what it is multiplied by.
  """
  del steps
  return optax.exponential_decay(peak, period, factor, staircase=True)


SCHEDULES = {
  'constant': _constant,
  'cosine': _cosine,
  'milestones': _milestones,
  'staircase': _staircase,
}


def bind_schedule(fields: Mapping[str, Any]) -> Bound:
  """Binds the fields of a schedule, for `with_warmup`.

  Args:
    fields: `name`, a name in `SCHEDULES`, and its arguments; `None` means not
      set. Milestones may be in any unit here.

  Raises:
    ConfigError: if the name is unknown, or a field is missing, not the
      schedule's, or out of range.
  """
  return bind(SCHEDULES, set_fields(fields), 'schedule')


def with_warmup(
  schedule: Bound, peak: float, *, warmup_steps: int, steps: int
) -> optax.Schedule:
  """A learning-rate schedule over optimizer steps, after a linear increase.

  Args:
    schedule: the result of `bind_schedule`, with milestones in steps.
    peak: the learning rate after warmup.
    warmup_steps: number of steps of the linear increase from 0.
    steps: length of the run, including warmup. It may be shorter than warmup.
  """
  if not warmup_steps:
    return schedule(peak, steps)
  if 'milestones' in schedule.arguments:  # It counts from its own start.
    later = [m - warmup_steps for m in schedule.arguments['milestones']]
    schedule = schedule.changed(milestones=later)
  warmup = optax.linear_schedule(0.0, peak, warmup_steps)
  after = schedule(peak, max(1, steps - warmup_steps))
  return optax.join_schedules([warmup, after], [warmup_steps])


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
    ConfigError: see `bind_schedule`.
  """
  schedule = bind_schedule({'name': name, **fields})
  return with_warmup(schedule, peak, warmup_steps=warmup_steps, steps=steps)
