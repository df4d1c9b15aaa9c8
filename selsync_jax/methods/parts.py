"""The registry of the parts of methods.

A part is a constructor in `selsync_jax.sync`. Its parameters are the fields of
the part in the config, except for values from the run (`Context`) and the
mapped axis. If a parameter is itself a part, or an optimizer, the config has
its name and its fields.
"""

from collections.abc import Mapping
import inspect
import types
from typing import Any, NamedTuple

import optax

from selsync_jax import config, optimizers
from selsync_jax.config import Bound, config_errors, ConfigError, Constructor
from selsync_jax.sync import (
  averagers,
  delay,
  drift,
  exchange,
  fragments,
  optimizer_state,
  reducers,
  sparse,
  sparse_wire,
  triggers,
  wires,
)
from selsync_jax.sync.alternation import interleave
from selsync_jax.sync.budget import budgeted
from selsync_jax.sync.byzantine import (
  centered_clip,
  geometric_median,
  trimmed_mean,
)
from selsync_jax.sync.fda import fda
from selsync_jax.sync.lazy import lazy
from selsync_jax.sync.part import hand, inside, rebuild
from selsync_jax.sync.power_sgd import power_sgd
from selsync_jax.sync.robust import robust_mean
from selsync_jax.sync.selsync import selsync
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.transformation import Reducer, Trigger

PARTS: dict[str, dict[str, Constructor]] = {
  'trigger': {
    'every': triggers.every,
    'post_local': triggers.post_local,
    'qsr': triggers.qsr,
    'selsync': selsync,
    'fda': fda,
    'budgeted': budgeted,
    'any_of': triggers.any_of,
    'max_interval': triggers.max_interval,
    'min_interval': triggers.min_interval,
  },
  'averager': {
    'none': averagers.no_averaging,
    'mean': averagers.mean,
    'subset_mean': averagers.subset_mean,
    'outer': averagers.outer,
    'eager_outer': delay.eager_outer,
    'gossip': exchange.gossip,
    'groups': exchange.groups,
    'fragments': fragments.fragments,
    'robust_mean': robust_mean,
    'geometric_median': geometric_median,
    'centered_clip': centered_clip,
    'trimmed_mean': trimmed_mean,
    'interleave': interleave,
  },
  'reducer': {
    'none': reducers.no_reduction,
    'all_reduce': reducers.all_reduce,
    'at_sync': reducers.at_sync,
    'clipped': reducers.clipped,
    'int8': reducers.int8,
    'top_k': sparse.top_k,
    'micro': sparse.micro,
    'exdyna': sparse.exdyna,
    'power_sgd': power_sgd,
    'lazy': lazy,
    'proximal': drift.proximal,
    'scaffold': drift.scaffold,
  },
  'wire': {
    'float32': wires.float32,
    'bfloat16': wires.bfloat16,
    'int8': wires.int8,
    'int4': wires.int4,
    'int2': wires.int2,
    'sparse': sparse_wire.sparse,
  },
  'delay': {'delayed': delay.delayed},
  'optimizer_state': {
    'local': optimizer_state.local,
    'mean': optimizer_state.mean,
    'reset': optimizer_state.reset,
  },
}

BARE = dict.fromkeys(PARTS, 'name') | {'delay': 'steps'}
"""The field set by a plain value, as in `sync.wire=int8`, by kind."""

KINDS: dict[Any, str] = {
  Trigger: 'trigger',
  averagers.Averager: 'averager',
  Reducer: 'reducer',
  wires.Wire: 'wire',
}
"""The kinds of parts, by the annotation of a parameter that takes one."""


class Context(NamedTuple):
  """The values of a run that its method may need.

  If a parameter of a part's constructor has one of these names, it receives
  this value and is not a field of the config. The learning rate is the local
  optimizer's.
  """

  steps_per_epoch: int  # Steps in which all workers together read the data set.
  seed: int
  learning_rate: optax.Schedule = optax.constant_schedule(0.1)


_PROVIDED = {*Context._fields, 'axis_name', 'of'}


def parameters(constructor: Constructor) -> dict[str, inspect.Parameter]:
  """Returns the parameters of a part that are fields of the config."""
  return config.parameters(constructor, _PROVIDED)


def bind_part(kind: str, given: Any, path: str) -> Bound:
  """Binds a part of the config; call the result with the values of the run.

  `kind` is a name in `PARTS`, and `given` the name of a part, or a mapping with
  `name` and the part's fields. `path` is the part's dotted path in the config,
  for messages.
  """
  fields = given if isinstance(given, Mapping) else {BARE[kind]: given}
  if not isinstance(fields.get('name'), str):
    raise ConfigError(f'config.{path}={given!r}: must be the name of a part')
  return config.bind(
    PARTS[kind], fields, path, given=_PROVIDED, nested=bind_value
  )


def bind_value(annotation: Any, value: Any, path: str) -> Any:
  """Binds the value of a parameter that is itself a part, or an optimizer."""
  if isinstance(annotation, types.UnionType) and value is not None:
    annotation = annotation.__args__[0]
  if annotation in KINDS:
    return bind_part(KINDS[annotation], value, path)
  if annotation is optax.GradientTransformation:
    return _bind_outer(value, path)
  return value


def _bind_outer(given: Any, path: str) -> Bound:
  """Binds the optimizer of an outer step.

  It moves the parameters; batch statistics are averaged without momentum. Its
  fields are `name`, `learning_rate`, and arguments of an optimizer of optax.
  """
  if not isinstance(given, Mapping):
    raise ConfigError(
      f'config.{path}={given!r}: must have name and learning_rate'
    )
  optimizer = optimizers.bind_optimizer(given, path)

  # The run's learning rate is for the local optimizer, so it is not passed on.
  def outer():
    labels = {'params': 'outer', 'model_state': 'mean'}
    return optax.partition(
      {'outer': optimizer(), 'mean': optax.sgd(1.0)},
      lambda tree: {name: labels[name] for name in tree},
    )

  return optimizer._replace(constructor=outer, arguments={})


def bind_changes(given: Mapping[str, Any]) -> dict[str, Any]:
  """Binds the changes to the parts of a preset, for `compose`.

  A change is the name of another part, a mapping with its `name` and fields, or
  only fields, which change the preset's part. An empty value keeps the preset's
  part. A delay is the number of steps, or the fields of `delayed`.
  """
  changes = {}
  for kind, part in given.items():
    if kind == 'delay' and part:
      fields = part if isinstance(part, Mapping) else {BARE[kind]: part}
      part = {'name': 'delayed', **fields} if fields.get('steps') != 0 else {}
    if isinstance(part, Mapping) and 'name' not in part and kind != 'wire':
      changes |= {kind: part} if part else {}
    elif part:
      changes[kind] = bind_part(kind, part, f'sync.{kind}')
  return changes


def compose(
  preset: Strategy, changes: Mapping[str, Any], context: Context
) -> Strategy:
  """Replaces parts of a method's strategy by the result of `bind_changes`.

  Raises `ConfigError` if the parts cannot work together.
  """
  run = context._asdict()
  parts = {
    kind: change(**run)
    if isinstance(change, Bound)
    else _changed(getattr(preset, kind), change, run, f'sync.{kind}')
    for kind, change in changes.items()
    if kind != 'delay'
  }
  wire, late = parts.pop('wire', None), changes.get('delay')
  strategy = preset._replace(**parts)
  with config_errors('sync'):
    if wire is not None:
      strategy = _on_wire(strategy, wire)
    if late is not None:
      averager = late(**run, of=strategy.averager)
      strategy = strategy._replace(averager=averager)
    strategy = _with_moments(strategy)
    strategy.check()
  return strategy


def _changed(
  own: Any, given: Mapping[str, Any], run: Mapping[str, Any], path: str
) -> Any:
  """Changes some fields of a part, and of the parts and dicts inside it."""
  if isinstance(own, Mapping):
    return {**own, **given}
  if getattr(own, 'recipe', None) is None:
    raise ConfigError(f'config.{path}: set {own!r} as a whole, with its name')
  constructor, call = own.recipe
  inside = {
    field: _changed(call.arguments[field], value, run, f'{path}.{field}')
    for field, value in given.items()
    if field in call.arguments
    and isinstance(value, Mapping)
    and 'name' not in value
  }
  fields = {field: given[field] for field in given if field not in inside}
  name = constructor.__name__
  arguments = config.bind_arguments(
    constructor, fields, path, name=name, given=_PROVIDED, nested=bind_value
  )
  made = {k: config.made(argument, run) for k, argument in arguments.items()}
  with config_errors(path):
    return rebuild(own, **inside, **made)


def _on_wire(strategy: Strategy, wire: wires.Wire) -> Strategy:
  """Sends the averages of a strategy through a wire."""
  averager = hand(strategy.averager, wire=wire)
  if averager is None and wire.exact:
    return strategy
  if averager is None:
    raise ValueError(
      f'wire {wire.recipe} carries a mean over all workers, and averager '
      f'{strategy.averager} has no such mean'
    )
  return strategy._replace(averager=averager)


def _with_moments(strategy: Strategy) -> Strategy:
  """Sends averages of moments through the averager's wire by default."""
  policy = strategy.optimizer_state
  found = [
    part
    for part in inside(strategy.averager)
    if isinstance(part, wires.Wire) and not part.exact
  ]
  if not (policy.averages and found) or any(inside(policy)):
    return strategy
  wire = wires.bfloat16() if found[0].coarse else found[0]
  return strategy._replace(optimizer_state=hand(policy, wire=wire) or policy)
