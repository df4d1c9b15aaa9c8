"""The registry of the parts that a method is composed of.

A part is a constructor in `selsync_jax.sync`. Its parameters are the fields of
the part in the config, but for those that the run provides (`Context`) and the
mapped axis. A parameter that is itself a part, or an optimizer, is given in the
config by its name and its own fields.
"""

from collections.abc import Callable, Mapping
import inspect
import types
import typing
from typing import Any

import optax

from selsync_jax import optimizers
from selsync_jax.config import lookup
from selsync_jax.methods.context import Context
from selsync_jax.sync import averagers
from selsync_jax.sync import exchange
from selsync_jax.sync import fragments
from selsync_jax.sync import moments
from selsync_jax.sync import periods
from selsync_jax.sync import reducers
from selsync_jax.sync import sparse
from selsync_jax.sync import triggers
from selsync_jax.sync import wires
from selsync_jax.sync.budget import budgeted
from selsync_jax.sync.fda import fda
from selsync_jax.sync.part import hand
from selsync_jax.sync.part import rebuild
from selsync_jax.sync.part import shown
from selsync_jax.sync.power_sgd import power_sgd
from selsync_jax.sync.selsync import selsync
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.transformation import Reducer
from selsync_jax.sync.transformation import Trigger

Constructor = Callable[..., Any]

PARTS: dict[str, dict[str, Constructor]] = {
  'trigger': {
    'every': triggers.every,
    'post_local': periods.post_local,
    'qsr': periods.qsr,
    'selsync': selsync,
    'fda': fda,
    'budgeted': budgeted,
    'any_of': triggers.any_of,
    'at_least_every': triggers.at_least_every,
    'at_most_every': triggers.at_most_every,
  },
  'averager': {
    'none': averagers.no_averaging,
    'mean': averagers.mean,
    'subset_mean': averagers.subset_mean,
    'outer': averagers.outer,
    'gossip': exchange.gossip,
    'groups': exchange.groups,
    'fragments': fragments.fragments,
  },
  'reducer': {
    'none': reducers.no_reduction,
    'all_reduce': reducers.all_reduce,
    'at_sync': reducers.at_sync,
    'int8': reducers.int8,
    'top_k': sparse.top_k,
    'micro': sparse.micro,
    'exdyna': sparse.exdyna,
    'power_sgd': power_sgd,
  },
  'wire': {
    'float32': wires.float32,
    'bfloat16': wires.bfloat16,
    'int8': wires.int8,
  },
  'optimizer_state': {
    'local': moments.local,
    'mean': moments.mean,
    'reset': moments.reset,
    'mixed': moments.mixed,
  },
}

_KINDS = {
  Trigger: 'trigger',
  averagers.Averager: 'averager',
  Reducer: 'reducer',
  wires.Wire: 'wire',
}


def parameters(constructor: Constructor) -> dict[str, inspect.Parameter]:
  """The parameters of a part that are fields of the config."""
  provided = {*inspect.signature(Context).parameters, 'axis_name'}
  every = inspect.signature(constructor, eval_str=True).parameters
  return {name: p for name, p in every.items() if name not in provided}


def takes_none(annotation: Any) -> bool:
  """Whether a parameter with this annotation may be `None`."""
  unknown = annotation in (Any, inspect.Parameter.empty)
  return unknown or types.NoneType in typing.get_args(annotation)


def build(kind: str, given: Any, context: Context) -> Any:
  """A part of the config.

  Args:
    kind: a name in `PARTS`.
    given: the name of a part; or a mapping with `name` and its fields.
    context: what the run provides.

  Raises:
    ValueError: naming the field, its value, and the rule that it breaks.
  """
  fields = dict(given) if isinstance(given, Mapping) else {'name': given}
  name = fields.pop('name', None)
  if not isinstance(name, str):
    raise ValueError(f'must be the name of a part, got {name!r}')
  constructor = lookup(PARTS[kind], name)
  arguments = _arguments(constructor, fields, context)
  provided = inspect.signature(constructor).parameters
  run = {k: v for k, v in context._asdict().items() if k in provided}
  bound = inspect.signature(constructor).bind_partial()
  bound.arguments.update(arguments | run)
  required = [
    field
    for field, p in parameters(constructor).items()
    if p.default is p.empty and field not in bound.arguments
  ]
  if required:
    raise ValueError(f'{name} needs {", ".join(required)}')
  return constructor(*bound.args, **bound.kwargs)


def _arguments(
  constructor: Constructor,
  fields: Mapping[str, Any],
  context: Context,
  own: Mapping[str, Any] = types.MappingProxyType({}),
) -> dict[str, Any]:
  """The fields of a part as arguments of its constructor.

  Args:
    constructor: of the part.
    fields: as in the config.
    context: what the run provides.
    own: the arguments of the part that is changed, if one is: fields without a
      name change the parts inside it.
  """
  accepted = parameters(constructor)
  rest = [p for p in accepted.values() if p.kind is p.VAR_POSITIONAL]
  if rest:  # Any number of parts, in the order of names of the user's choice.
    kind = _KINDS[rest[0].annotation]
    return {
      rest[0].name: tuple(
        _at(field, build, kind, fields[field], context)
        for field in sorted(fields)
      )
    }
  for field, value in fields.items():
    if field not in accepted:
      known = ', '.join(accepted) or 'no fields'
      raise ValueError(
        f'{constructor.__name__} has {known}, but no {field}, got {value!r}'
      )
  return {
    field: _at(field, _changed, own[field], value, context)
    if field in own and isinstance(value, Mapping) and 'name' not in value
    else _at(field, _value, accepted[field].annotation, value, context)
    for field, value in fields.items()
  }


def _at(field: str, function: Callable[..., Any], *args: Any) -> Any:
  """Calls a function, and adds the field to what it refuses."""
  try:
    return function(*args)
  except ValueError as error:
    raise ValueError(f'{field}: {error}') from error


def _value(annotation: Any, value: Any, context: Context) -> Any:
  """A field's value as the annotation of its parameter asks."""
  if value is None and not takes_none(annotation):
    raise ValueError('must have a value, got None')
  if annotation in _KINDS:
    return build(_KINDS[annotation], value, context)
  if annotation is optax.GradientTransformation:
    return outer_optimizer(value)
  _check_type(annotation, value)
  return value


def _check_type(annotation: Any, value: Any) -> None:
  """Raises `ValueError` for a text where a number belongs, and the like."""
  if value is None:
    return  # `takes_none` knows.
  is_union = isinstance(annotation, types.UnionType)
  allowed = annotation.__args__ if is_union else (annotation,)
  numbers = {int, float} & set(allowed)
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if numbers and (not is_number or value != value):
    raise ValueError(f'must be a number, got {value!r}')
  if numbers == {int} and isinstance(value, float):
    raise ValueError(f'must be a whole number, got {value!r}')
  if str in allowed and not isinstance(value, str):
    raise ValueError(f'must be a name, got {value!r}')
  if not numbers and str not in allowed and not isinstance(value, list | tuple):
    raise ValueError(f"must be names such as ('mu',), got {value!r}")


def outer_optimizer(given: Any) -> optax.GradientTransformation:
  """The optimizer of an outer step, from a mapping of name and arguments.

  It moves the parameters. Batch statistics are averaged: they are not
  extrapolated by momentum.

  Raises:
    ValueError: if there is no such optimizer, or an argument is missing or
      not its own.
  """
  required = ('name', 'learning_rate')
  options = given if isinstance(given, Mapping) else {}
  if missing := [f for f in required if options.get(f) is None]:
    raise ValueError(f'needs {" and ".join(missing)}')
  for field in required:
    if message := optimizers.RULES[field].broken(options[field]):
      raise ValueError(f'{field}={options[field]!r}: {message}')
  labels = {'params': 'outer', 'model_state': 'mean'}
  return optax.partition(
    {'outer': optimizers.create_optimizer(**given), 'mean': optax.sgd(1.0)},
    lambda tree: {name: labels[name] for name in tree},
  )


def compose(
  preset: Strategy, changes: Mapping[str, Any], context: Context
) -> Strategy:
  """A preset with some of its parts replaced.

  Args:
    preset: the strategy of a method.
    changes: by kind of part: the name of another part; a mapping with its
      `name` and fields; or fields alone, which change the preset's own part.
    context: what the run provides.

  Raises:
    ValueError: naming the field, its value, and the rule that it breaks; or
      the parts that cannot be right together.
  """
  parts = {}
  for kind, given in changes.items():
    if not given or kind == 'wire':
      continue
    own = getattr(preset, kind)
    if isinstance(given, Mapping) and 'name' not in given:
      parts[kind] = _at(kind, _changed, own, given, context)
    else:
      parts[kind] = _at(kind, build, kind, given, context)
  strategy = preset._replace(**parts)
  if changes.get('wire'):
    wire = _at('wire', build, 'wire', changes['wire'], context)
    strategy = _on_wire(strategy, wire)
  strategy.check()
  return strategy


def _changed(own: Any, given: Mapping[str, Any], context: Context) -> Any:
  """The preset's own part with some of its fields changed."""
  if getattr(own, 'recipe', None) is None:
    raise ValueError(f'set {own!r} as a whole, with its name')
  constructor, arguments = own.recipe
  return rebuild(
    own, **_arguments(constructor, given, context, arguments.arguments)
  )


def _on_wire(strategy: Strategy, wire: wires.Wire) -> Strategy:
  """The strategy with its averages on a wire."""
  averager = hand(strategy.averager, wire=wire)
  if averager is None and wire.exact:
    return strategy  # As it is.
  if averager is None:
    raise ValueError(
      f'wire {wire.recipe} carries a mean over all workers, and averager '
      f'{shown(strategy.averager)} takes none'
    )
  policy = strategy.optimizer_state
  if policy.averages:
    fine = wires.bfloat16() if wire.coarse else wire
    policy = hand(policy, wire=fine) or policy
  return strategy._replace(averager=averager, optimizer_state=policy)
