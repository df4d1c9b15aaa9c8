"""The registry of synchronization methods.

A method is a constructor that returns a `Strategy`; its keyword arguments are
its fields in `config.sync`. All built-in methods but `adaptive.selsync` are
rows of `table`. Everything else that lists methods or fields (config
defaults, flags, docs, the conformance suite, comparisons) reads this table.
"""

from collections.abc import Callable, Mapping
import inspect
from typing import Any, NamedTuple

from selsync_jax import config
from selsync_jax.methods import adaptive
from selsync_jax.methods.parts import bind_changes, compose
from selsync_jax.methods.parts import Context as Context
from selsync_jax.methods.parts import PARTS as PARTS
from selsync_jax.methods.table import ROWS
from selsync_jax.sync.strategy import Strategy

METHODS = config.Registry('method', {'selsync': adaptive.selsync, **ROWS})

REMOVED = {'budgeted': 'selsync with sync.lssr or sync.bytes_per_step'}
"""Methods of earlier versions, and their replacements."""

MODEL_STATE = {'mean': True, 'recompute': False}
"""Whether batch statistics are averaged with the parameters. Otherwise they
stay local, and every evaluation estimates statistics for the consensus."""


def register_method(method: Callable[..., Strategy]) -> Callable[..., Strategy]:
  """Adds a custom method to the table, under the constructor's name.

  This decorates a constructor like the built-in ones. In a config file, it runs
  wherever the file is loaded: by `train`, `compare` and their processes. Raises
  `ConfigError` if another method has this name.

  Example:
    >>> from selsync_jax import methods
    >>> from selsync_jax.sync import averagers, strategy, triggers
    >>> @methods.register_method
    ... def alternating(context, *, period: int = 2):
    ...   return strategy.Strategy(triggers.every(period), averagers.mean())
    >>> methods.fields('alternating')
    {'period': 2}
    >>> del methods.METHODS['alternating']
  """
  return METHODS.register(method)


def parameters(method: str) -> dict[str, inspect.Parameter]:
  """Returns the fields of a method, as its constructor declares them.

  Raises `ValueError` if there is no such method.
  """
  if method in REMOVED and method not in METHODS:
    raise ValueError(f'{method!r} is now {REMOVED[method]}')
  return config.parameters(config.lookup(METHODS, method))


def fields(method: str) -> dict[str, Any]:
  """Returns the fields of a method and their defaults."""
  return {name: p.default for name, p in parameters(method).items()}


class BoundStrategy(NamedTuple):
  """The checked `sync` of a config; call it to get the strategy."""

  method: config.Bound  # The method's constructor with its fields.
  changes: Mapping[str, Any]  # The result of `bind_changes`.
  averages_model_state: bool

  def __call__(self, context: Context) -> Strategy:
    """Returns the strategy of a run.

    An error in a user's method becomes a `ConfigError`.
    """
    preset = self.method(context)
    with self.method.errors('sync'):
      if not isinstance(preset, Strategy):
        raise TypeError(f'must return a Strategy, got {preset!r}')
    strategy = compose(preset, self.changes, context)
    return strategy._replace(averages_model_state=self.averages_model_state)


def bind_strategy(sync: Mapping[str, Any]) -> BoundStrategy:
  """Binds the `sync` of a config.

  The field `method` is a name in `METHODS`; fields of other methods must be
  `None`. A name in `PARTS` replaces or changes that part, see `bind_changes`.
  The field `model_state` is a name in `MODEL_STATE`.
  """
  given = dict(sync)
  method = given['method']
  with config.config_errors('sync.model_state'):
    model_state = config.lookup(MODEL_STATE, given.pop('model_state', 'mean'))
  changes = {kind: given.pop(kind, None) for kind in PARTS}
  with config.config_errors('sync.method'):
    own = parameters(method)
  for field, value in given.items():
    if field not in own and field != 'method' and value is not None:
      raise config.ConfigError(
        f'config.sync.{field}={value!r}: method {method} has no {field}; '
        f'--config=FILE:{method} picks it with its own fields'
      )
  bound = config.bind(METHODS, given, 'sync', key='method')
  return BoundStrategy(bound, bind_changes(changes), model_state)


def create_strategy(method: str, context: Context, **given: Any) -> Strategy:
  """Returns the strategy of a method; see `bind_strategy` for the fields."""
  return bind_strategy({'method': method, **given})(context)
