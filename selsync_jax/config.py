"""What a run may ask for: the rules of the config that concern no one room.

A rule that belongs to a room (a method's own fields, a partition, a model) is
checked there, by the function that takes the value; `blame` adds the name of
the field, so that every message reads alike.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import inspect
import operator
from typing import Any, NamedTuple


class ConfigError(Exception):
  """A mistake of the user's: one line naming field, value and rule."""

  code = 2  # Of the process that it ends.


class RunError(Exception):
  """A run that can not go on: one line saying where and why."""

  code = 1


@contextlib.contextmanager
def blame(field: str) -> Iterator[None]:
  """Turns a `ValueError` raised inside into a `ConfigError` about `field`."""
  try:
    yield
  except ValueError as error:
    raise ConfigError(f'config.{field}: {error}') from error


def pick(table: Mapping[Any, Any], name: Any) -> Any:
  """The entry of a table of names, or a `ValueError` that lists them."""
  if name not in table:
    raise ValueError(f'{name!r} is none of {", ".join(map(str, table))}')
  return table[name]


def own_fields(
  make: Callable[..., Any], name: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Those of `fields` that are set, for the keyword arguments of `make`.

  Raises:
    ValueError: if one is not an argument of `make`, which goes by `name`, or
      one that `make` must have is not set.
  """
  parameters = inspect.signature(make).parameters.values()
  own = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
  given = {k: v for k, v in fields.items() if v is not None}
  for field, value in given.items():
    if field not in own:
      raise ValueError(f'{name} has no {field}, got {value!r}')
  for field, parameter in own.items():
    if parameter.default is parameter.empty and field not in given:
      raise ValueError(f'{name} needs {field}, got None')
  return given


class Rule(NamedTuple):
  """One field's rule; a value of `None` (not set) satisfies every rule."""

  field: str
  holds: Callable[[Any], bool]
  words: str


RULES = (
  Rule('workers', lambda v: v >= 1, 'must be at least 1'),
  Rule('mapper', lambda v: v in ('pmap', 'vmap'), 'must be pmap or vmap'),
  Rule('seed', lambda v: 0 <= v < 2**31, 'must be in [0, 2**31)'),
  Rule('steps', lambda v: v >= 1, 'must be at least 1'),
  Rule('epochs', lambda v: v > 0, 'must be above 0'),
  Rule('batch_size', lambda v: v >= 1, 'must be at least 1'),
  Rule('eval.every_epochs', lambda v: v > 0, 'must be above 0'),
  Rule('eval.batch_size', lambda v: v >= 1, 'must be at least 1'),
  Rule('checkpoint.every', lambda v: v >= 1, 'must be at least 1'),
  Rule('checkpoint.keep', lambda v: v >= 1, 'must be at least 1'),
  Rule(
    'checkpoint.resize',
    lambda v: v in ('mean', 'clone'),
    'must be mean or clone',
  ),
  Rule(
    'checkpoint.resize_batch',
    lambda v: v in ('total', 'worker'),
    'must be total or worker',
  ),
  Rule('log.every', lambda v: v >= 1, 'must be at least 1'),
  Rule('log.fetch_every', lambda v: v >= 1, 'must be at least 1'),
  Rule('check_replicas', lambda v: v >= 0, 'must be at least 0'),
  Rule(
    'on_nonfinite',
    lambda v: v in ('stop', 'skip'),
    'must be stop or skip',
  ),
)


def check(config: Any) -> None:
  """Raises `ConfigError` for the first field that breaks its rule."""
  for field, holds, words in RULES:
    value = operator.attrgetter(field)(config)
    if value is not None and not holds(value):
      raise ConfigError(f'config.{field}={value!r}: {words}')
  if config.steps is None and config.epochs is None:
    raise ConfigError('config.steps=None, config.epochs=None: set one of them')
