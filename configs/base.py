"""The default config, collected from the declarations of its fields.

`selsync_jax/fields.py` has the fields that belong to no constructor;
docs/fields.md lists all fields. `config.sync` has only the fields of one
method, which `--config=configs/digits.py:bsp` selects. The method's constructor
in `selsync_jax/methods/` or `selsync_jax/simulate/asynchronous/` declares them.
A workload's config starts from this one and changes some fields.
"""

from collections.abc import Mapping, Sequence
import inspect
import types
from typing import Any

from ml_collections import config_dict

from selsync_jax import fields, methods
from selsync_jax.config import (
  ConfigError,
  Constructor,
  lookup,
  parameters,
  rule,
)
from selsync_jax.data.partitions import PARTITIONS
from selsync_jax.data.sources import BY_NUMPY, BY_TFDS
from selsync_jax.optimizers import SCHEDULES
from selsync_jax.simulate.cluster import COMPUTE

NO_OVERRIDES: Mapping[str, Any] = types.MappingProxyType({})
PAPER: Mapping[str, Any] = types.MappingProxyType({'selsync': {'delta': 0.3}})
"""The delta of the SelSync paper, for the paper's workloads."""


def _sync(method: str, overrides: Mapping[str, Mapping[str, Any]]) -> dict:
  """Returns the fields of a method, with its defaults and `overrides`."""
  try:
    declared = _parameters(method)
  except ValueError as error:
    raise ConfigError(f'config.sync.method={error}') from error
  defaults = {name: _default(p) for name, p in declared.items()}
  own = {'method': method, **defaults, **overrides.get(method, {})}
  if method not in methods.METHODS:
    return own  # An asynchronous method has no such parts.
  return {
    **own,
    # Replacements for the method's parts, by name and fields, or fields that
    # change its parts; see docs/methods.md. Empty: the method's own part.
    **{kind: {} for kind in methods.PARTS},
    # 'recompute': batch statistics stay local, and each evaluation estimates
    # the consensus's statistics from one pass over the training data.
    'model_state': getattr(methods.METHODS[method], 'model_state', 'mean'),
  }


def _parameters(method: str) -> Mapping[str, inspect.Parameter]:
  if method in methods.METHODS or method in methods.REMOVED:
    return methods.parameters(method)
  # This import loads more than the methods above need.
  from selsync_jax.simulate.asynchronous import ASYNCHRONOUS

  every = methods.METHODS | ASYNCHRONOUS
  return parameters(lookup(every, method))


def _default(parameter: inspect.Parameter) -> Any:
  """Returns a default that a flag can change; `None` needs a type."""
  kind = rule(parameter.annotation).kind
  if parameter.default in (None, parameter.empty) and kind is object:
    raise ConfigError(
      f'config.sync.{parameter.name}: needs a default in its method; a '
      'default of None needs an annotation such as float | None'
    )
  if parameter.default in (None, parameter.empty):
    return config_dict.placeholder(kind)
  return parameter.default


def _unset(*tables: Mapping[str, Constructor]) -> dict[str, Any]:
  """Returns the fields of all constructors in some tables, not set."""
  return {
    name: config_dict.placeholder(rule(parameter.annotation).kind)
    for table in tables
    for constructor in table.values()
    for name, parameter in parameters(constructor).items()
  }


def _own() -> dict[str, Any]:
  """Returns the fields of no constructor, nested, with their defaults."""
  from flax import traverse_util  # Imports JAX.

  return traverse_util.unflatten_dict(
    {
      name: config_dict.placeholder(rule(field.rule).kind)
      if field.default is None
      else field.default
      for name, field in fields.FIELDS.items()
    },
    sep='.',
  )


def split(
  argument: str, variants: Sequence[str] = ('smoke',)
) -> tuple[str, str]:
  """Parses the argument of a workload's config file, `METHOD[,VARIANT]`.

  Without a variant, the second result is empty. The variant `smoke` is small
  enough for a laptop, with data that every machine has.
  """
  method, _, variant = argument.partition(',')
  if variant not in variants and argument != method:
    names = ' or '.join(variants)
    raise ConfigError(
      f'--config=FILE:{argument}: only {names} may follow the method'
    )
  return method, variant


def set_optimizer(config: config_dict.ConfigDict, **given: Any) -> None:
  """Sets fields of the local optimizer, unless the method has its own."""
  method = methods.METHODS.get(config.sync.method)
  config.optimizer.update(getattr(method, 'optimizer', None) or given)


def shrink(config: config_dict.ConfigDict) -> None:
  """Sets four workers and float32, for a CPU."""
  config.workers = 4
  config.model.dtype = 'float32'


def get_config(
  method: str, overrides: Mapping[str, Mapping[str, Any]] = NO_OVERRIDES
) -> config_dict.ConfigDict:
  """Returns the default config with the fields of one method.

  Args:
    method: a name in `selsync_jax.methods.METHODS`.
    overrides: a workload's values for fields of each method, by method.
  """
  config = _own()
  config['sync'] = _sync(method, overrides)
  config['data'] |= _unset(BY_NUMPY, BY_TFDS, PARTITIONS)
  config['schedule'] |= _unset(SCHEDULES)
  config['virtual_cluster'] |= _unset(COMPUTE)
  return config_dict.ConfigDict(config)
