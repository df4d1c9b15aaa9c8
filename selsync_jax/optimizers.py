"""Optimizers and learning-rate schedules of optax, by name."""

from collections.abc import Callable, Mapping, Sequence
import functools
import inspect
import re
from typing import Any, Literal
import warnings

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from selsync_jax.array_names import array_name
from selsync_jax.config import (
  bind,
  Bound,
  config_errors,
  ConfigError,
  Count,
  Fraction,
  NonNegative,
  Positive,
  Probability,
  rule,
  set_fields,
  Share,
)

# The masks for optax's weight decay, by name. Matrices are all parameters with
# more than one axis, so no biases and no norm scales.
DECAYED: dict[str, Any] = {
  'all': None,
  'matrices': lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
}

NEEDS_MORE = {
  'lbfgs': 'value, grad and value_fn',
  'momo': 'value',
  'momo_adam': 'value',
  'sophia': 'obj_fn',
}
"""The arguments that an optimizer's `update` needs besides the gradient.

A step passes none of them. Workers that average their gradients still differ in
their loss, so the replicas would drift apart. A function would compute the loss
a second time.
"""

_Groups = tuple[Any, ...]

_ARGUMENTS: dict[str, Any] = {
  'learning_rate': NonNegative,
  'decayed': Literal['all', 'matrices'],
  'clip_norm': Positive,
  'groups': _Groups,
  'weight_decay': NonNegative,
  'nesterov': bool,
  **dict.fromkeys(('momentum', 'b1', 'b2', 'b3', 'decay', 'decay_rate'), Share),
  'eps': NonNegative,
}
"""The rules for our arguments, and for common arguments of optax's optimizers,
which declare no ranges."""


def _constructor(name: Any) -> Callable[..., optax.GradientTransformation]:
  """Returns an optimizer of optax with the arguments of `create_optimizer`.

  The name may be from `optax.contrib`. Raises `ValueError` if no function of
  this name takes a learning rate.
  """
  make = None
  if isinstance(name, str):
    with warnings.catch_warnings(action='ignore'):  # About moved optimizers.
      make = getattr(optax, name, None) or getattr(contrib, name, None)
  own = dict(inspect.signature(make).parameters) if callable(make) else {}
  if make is None or 'learning_rate' not in own:
    raise ValueError(f'{name!r} is not an optimizer of optax')
  if name in NEEDS_MORE:
    raise ValueError(
      f'{name!r} needs {NEEDS_MORE[name]} to update, and a step has only the '
      'gradient; choose another optimizer'
    )
  if own.keys() & {'key', 'seed'}:
    raise ValueError(
      f'{name!r} keeps a random key, which the state of a run cannot hold; '
      'choose another optimizer'
    )
  masks = [mask for mask in ('mask', 'weight_decay_mask') if mask in own]

  def create(
    learning_rate, *, decayed='all', clip_norm=None, groups=(), **options
  ):
    mask, clip, before = DECAYED[decayed], [], []
    default = getattr(own.get('weight_decay'), 'default', None)
    decays = default is not None and options.get('weight_decay', default)
    if mask and decays and not masks:
      raise ValueError(
        f'decayed={decayed!r}: must be all; {name} decays all parameters'
      )
    if clip_norm is not None:
      clip.append(optax.clip_by_global_norm(clip_norm))
    if 'weight_decay' in options and 'weight_decay' not in own:
      decay = optax.add_decayed_weights(options.pop('weight_decay'), mask)
      before.append(decay)
    if mask and masks:
      options[masks[0]] = mask
    rest = [*before, make(learning_rate, **options)]
    if groups:
      rest = [_partition(optax.chain(*rest), groups)]
    return optax.chain(*clip, *rest)

  defaults = {'decayed': 'all', 'clip_norm': None, 'weight_decay': None}
  defaults |= {'groups': ()} | {
    p.name: p.default
    for p in own.values()
    if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)  # No **kwargs.
  }
  keyword = functools.partial(
    inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY
  )
  signature = inspect.Signature(
    [
      keyword(name, default=value, annotation=_ARGUMENTS.get(name, Any))
      for name, value in defaults.items()
    ]
  )
  setattr(create, '__signature__', signature)  # noqa: B010
  return create


def bind_optimizer(fields: Mapping[str, Any], path: str = 'optimizer') -> Bound:
  """Binds `name` and the other arguments of `create_optimizer`.

  A `learning_rate` in a call of the result, such as a schedule, replaces the
  one in the fields.
  """
  name: Any = fields.get('name')
  with config_errors(f'{path}.name'):
    table = {name: _constructor(name)}

  def nested(annotation, value, place):
    if annotation is not _Groups:
      return value
    rule(annotation).check(value)
    return tuple(
      _bind_group(table, fields, group, f'{place}[{i}]')
      for i, group in enumerate(value)
    )

  return bind(table, set_fields(fields), path, nested=nested)


def _bind_group(
  table: Mapping[str, Any], fields: Mapping[str, Any], given: Any, path: str
) -> Bound:
  """Binds a group of parameters; `given` holds the fields that differ."""
  if not isinstance(given, Mapping):
    raise ConfigError(f'config.{path}={given!r}: must be a mapping of fields')
  own = {k: given[k] for k in ('parameters', 'scale') if k in given}
  for field in ('name', 'learning_rate', 'clip_norm', 'groups'):
    if field in given:
      raise ConfigError(
        f'config.{path}.{field}={given[field]!r}: {field} is the same for all '
        'parameters; scale multiplies the updates of a group'
      )
  common = {**fields, 'clip_norm': None, 'groups': None}
  different = {k: v for k, v in given.items() if k not in own}
  optimizer = bind(table, set_fields(common | different), path)
  group = bind({'group': _group}, {'name': 'group', **own}, path)
  return group.changed(optimizer=optimizer)


def _group(optimizer, *, parameters: str, scale: NonNegative = 1.0):
  """Returns a pattern of names, and the optimizer for matching parameters."""
  try:
    pattern = re.compile(parameters)
  except re.error as error:
    raise ValueError(f'parameters={parameters!r}: {error}') from error
  return pattern, optax.chain(optimizer, optax.scale(scale))


def _partition(rest, groups):
  """Returns an optimizer that updates each group with the group's optimizer."""

  def label(path, _):
    index = _index(array_name(path), [pattern for pattern, _ in groups])
    return 'rest' if index is None else str(index)

  def labels(tree):
    found = jax.tree.map_with_path(label, tree)
    for i, (pattern, _) in enumerate(groups):
      if str(i) not in jax.tree.leaves(found):
        raise ValueError(f'groups[{i}], {pattern.pattern!r}, has no parameters')
    return found

  own = {str(i): optimizer for i, (_, optimizer) in enumerate(groups)}
  return optax.partition({'rest': rest, **own}, labels)


def _index(name, patterns):
  """Returns the index of the first pattern that matches a parameter's name."""
  if not name.startswith('params/'):  # An outer step's tree has this prefix.
    name = f'params/{name}'
  fits = (i for i, each in enumerate(patterns) if re.search(each, name))
  return next(fits, None)


def is_frozen(optimizer: Bound) -> Callable[[str], bool]:
  """Returns `frozen(name)`, whether a parameter's group has scale 0."""
  groups = [g.arguments for g in optimizer.arguments.get('groups') or ()]
  patterns = [group['parameters'] for group in groups]

  def frozen(name):
    index = _index(name, patterns)
    return index is not None and groups[index].get('scale') == 0

  return frozen


def create_optimizer(
  name: str, learning_rate: optax.ScalarOrSchedule, **options: Any
) -> optax.GradientTransformation:
  """Returns an optimizer of optax, clipped, decayed and grouped as asked.

  Args:
    name: the name of a function in optax or `optax.contrib` that takes a
      learning rate.
    learning_rate: a number, or a schedule over optimizer steps.
    **options: arguments of that function; `None` means its default. There are
      four more. `clip_norm` clips the global norm of the gradient first.
      `weight_decay`, if the function does not take it, is L2 regularization: it
      is added to the gradient. `decayed` selects the parameters with weight
      decay: `all`, or only `matrices`. `groups` is a tuple of mappings. The
      field `parameters` of a group is a regular expression, searched in names
      such as `params/Dense_0/kernel`; the first matching group counts. The
      field `scale` multiplies the updates of these parameters. The other fields
      of a group override arguments.
  """
  fields = {'name': name, 'learning_rate': 0.0, **options}
  return bind_optimizer(fields)(learning_rate=learning_rate)


def _constant(peak, _steps):
  """Keeps the learning rate constant."""
  return optax.constant_schedule(peak)


def _cosine(peak, steps, *, alpha: Probability = 0.0, exponent: Positive = 1.0):
  """Decays as a cosine until the end of the run.

  Args:
    alpha: the final learning rate divided by the peak.
    exponent: the power of the cosine, which goes from 1 to 0.
  """
  return optax.cosine_decay_schedule(peak, steps, alpha, exponent)


def _polynomial(
  peak, steps, *, alpha: Probability = 0.0, power: Positive = 1.0
):
  """Decays until the end of the run, linearly or as another power.

  Args:
    alpha: the final learning rate divided by the peak.
    power: the power of the share of remaining steps; 1 is linear.
  """
  return optax.polynomial_schedule(peak, alpha * peak, power, steps)


def _exponential(peak, steps, *, alpha: Fraction):
  """Decays until the end of the run, by the same factor at each step.

  Args:
    alpha: the final learning rate divided by the peak.
  """
  return optax.exponential_decay(peak, steps, alpha)


def _stable(peak, steps, *, alpha: Probability = 0.0, decay: Fraction = 0.2):
  """Stays constant, then decays linearly at the end of the run: WSD.

  Args:
    alpha: the final learning rate divided by the peak.
    decay: the share of the steps with decay. 0.2 is from Hägele et al.,
      NeurIPS 2024.
  """
  length = max(1, round(decay * steps))
  return optax.linear_schedule(peak, alpha * peak, length, steps - length)


def _milestones(
  peak, _steps, *, milestones: Sequence[Positive], factor: Positive
):
  """Multiplies the learning rate at given points of the run.

  Args:
    milestones: the points, in epochs from the start of the run.
    factor: the multiplier of the learning rate.
  """
  scales: dict[Any, float] = {}  # By step; several milestones may share one.
  for step in milestones:
    scales[step] = scales.get(step, 1.0) * factor
  return optax.piecewise_constant_schedule(peak, scales)


def _staircase(peak, _steps, *, period: Count, factor: Positive):
  """Multiplies the learning rate periodically.

  Args:
    period: the steps from one multiplication to the next.
    factor: the multiplier of the learning rate.
  """
  return optax.exponential_decay(peak, period, factor, staircase=True)


SCHEDULES = {
  'constant': _constant,
  'cosine': _cosine,
  'polynomial': _polynomial,
  'exponential': _exponential,
  'stable': _stable,
  'milestones': _milestones,
  'staircase': _staircase,
}


def bind_schedule(fields: Mapping[str, Any]) -> Bound:
  """Binds `name`, a name in `SCHEDULES`, and its fields; see `with_warmup`.

  Milestones may be in any unit here.
  """
  return bind(SCHEDULES, set_fields(fields), 'schedule')


def with_warmup(
  schedule: Bound, peak: float, *, warmup_steps: int, steps: int
) -> optax.Schedule:
  """Returns a schedule over the optimizer steps of a run.

  It starts with a linear increase from 0 to `peak`, which may be longer than
  the run. Then follows `schedule`, from `bind_schedule`, with milestones in
  steps.
  """
  if not warmup_steps:
    return schedule(peak, steps)
  if 'milestones' in schedule.arguments:  # Counted from the end of the warmup.
    later = [m - warmup_steps for m in schedule.arguments['milestones']]
    schedule = schedule.changed(milestones=later)
  warmup = optax.linear_schedule(0.0, peak, warmup_steps)
  after = schedule(peak, max(1, steps - warmup_steps))
  return optax.join_schedules([warmup, after], [warmup_steps])


def if_finite(
  optimizer: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
  """Skips updates whose gradients are not all finite.

  Unlike `optax.apply_if_finite`, it counts nothing and adds no state, so a run
  may resume with it or without it.
  """
  optimizer = optax.with_extra_args_support(optimizer)

  def update(updates, state, params=None, **extra):
    leaves = jax.tree.leaves(updates)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))
    new, after = optimizer.update(updates, state, params, **extra)
    new = optax.tree.where(finite, new, optax.tree.zeros_like(new))
    kept = jax.tree.map(
      # An unchanged array stays the same object, see `sync.copies`.
      lambda x, y: x if x is y else jnp.where(finite, y, x),
      *(state, after),
    )
    return new, kept

  return optax.GradientTransformationExtraArgs(optimizer.init, update)


def move_schedules(opt_state: Any, move: Callable[[Any], Any]) -> Any:
  """Returns an optimizer's state with `move(count)` in its schedules' states.

  The state of a schedule is only a count of steps. A count beside moments is
  the number of their updates, which Adam needs to correct their bias.
  """

  def is_schedule(node):
    return getattr(node, '_fields', ()) == ('count',)

  return jax.tree.map(
    lambda x: x._replace(count=move(x.count)) if is_schedule(x) else x,
    opt_state,
    is_leaf=is_schedule,
  )
