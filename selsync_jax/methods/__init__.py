"""The registry of synchronization methods.

A method is a constructor whose keyword defaults are the fields of
`config.sync`, and that returns a `Strategy`. Ours stand by family, in
`periodic`, `adaptive` and `compressed`. Everything else that lists methods or
fields (config defaults, flags, docs, the conformance suite, comparisons) reads
this table.
"""

from collections.abc import Callable
import inspect
from typing import Any

from selsync_jax.config import lookup
from selsync_jax.config import Registry
from selsync_jax.methods import adaptive
from selsync_jax.methods import compressed
from selsync_jax.methods import periodic
from selsync_jax.methods.context import Context as Context
from selsync_jax.methods.parts import compose
from selsync_jax.methods.parts import PARTS as PARTS
from selsync_jax.methods.parts import takes_none
from selsync_jax.sync.strategy import Strategy

_OURS: dict[str, Callable[..., Strategy]] = {
  'selsync': adaptive.selsync,
  'selsync_paper': adaptive.selsync_paper,
  'bsp': periodic.bsp,
  'local_sgd': periodic.local_sgd,
  'post_local': periodic.post_local,
  'qsr': periodic.qsr,
  'fda': adaptive.fda,
  'fedavg': periodic.fedavg,
  'diloco': periodic.diloco,
  'streaming_diloco': periodic.streaming_diloco,
  'fedadam': periodic.fedadam,
  'slowmo': periodic.slowmo,
  'sparta': periodic.sparta,
  'gossip': periodic.gossip,
  'groups': periodic.groups,
  'top_k': compressed.top_k,
  'micro': compressed.micro,
  'exdyna': compressed.exdyna,
  'power_sgd': compressed.power_sgd,
  'int8': compressed.int8,
}
METHODS = Registry('method', _OURS)

REMOVED = {'budgeted': 'selsync with sync.lssr or sync.bytes_per_step'}
"""Methods of earlier versions, and what replaces them."""

MODEL_STATE = {'mean': True, 'recompute': False}
"""Whether batch statistics are averaged with the parameters. Otherwise they
stay local, and every evaluation estimates those of the consensus anew."""


def register_method(
  method: Callable[..., Strategy],
) -> Callable[..., Strategy]:
  """Adds a method of your own to the table, under its own name.

  A decorator for a constructor like ours. In a config file, it runs wherever
  the file is loaded: by `train`, `compare` and their processes.

  Raises:
    ConfigError: if another method has this name.

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
  """The fields of a method, as its constructor declares them.

  Raises:
    ValueError: if there is no such method.
  """
  if method in REMOVED and method not in METHODS:
    raise ValueError(f'{method!r} is now {REMOVED[method]}')
  every = inspect.signature(lookup(METHODS, method), eval_str=True).parameters
  return {k: p for k, p in every.items() if p.kind is p.KEYWORD_ONLY}


def fields(method: str) -> dict[str, Any]:
  """The fields of a method and their defaults.

  Raises:
    ValueError: if there is no such method.
  """
  return {name: p.default for name, p in parameters(method).items()}


def create_strategy(
  method: str,
  context: Context,
  model_state: str = 'mean',
  **given: Any,
) -> Strategy:
  """The strategy of a config's `sync`.

  Args:
    method: a name in `METHODS`.
    context: what the method may need to know of the run.
    model_state: a name in `MODEL_STATE`.
    **given: that method's fields, others must be `None`, not set; and under
      the names in `PARTS`, what replaces or changes a part, see `compose`.

  Raises:
    ValueError: if the method is unknown, a field is not its own, a value
      breaks the rule of its field, or the parts cannot be right together.
    ConfigError: for an error in a method of the user's own.
  """
  own = parameters(method)
  changes = {kind: given.pop(kind, None) for kind in PARTS}
  foreign = [
    f'{field}={value!r}'
    for field, value in given.items()
    if field not in own and value is not None
  ]
  if foreign:
    raise ValueError(
      f'method {method} has no {", ".join(foreign)}; '
      f'--config=FILE:{method} picks it with its own fields'
    )
  arguments = {field: given[field] for field in own if field in given}
  for field, value in arguments.items():
    if value is None and not takes_none(own[field].annotation):
      raise ValueError(f'method {method} needs {field}, got None')
  with METHODS.errors(method, 'sync'):
    preset = METHODS[method](context, **arguments)
    if not isinstance(preset, Strategy):
      raise TypeError(f'must return a Strategy, got {preset!r}')
  strategy = compose(preset, changes, context)
  return strategy._replace(
    averages_model_state=lookup(MODEL_STATE, model_state)
  )
