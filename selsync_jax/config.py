"""Binds a name and its fields in a config to a constructor, with checks.

A field and its range are declared once, by the annotation of the parameter that
uses it, in the vocabulary of `annotated_types`. `bind` compares a config's
fields with a constructor's parameters. It reports the first unknown, missing or
out-of-range field in one line. The tables of the docs have the same source.
"""

from collections.abc import Callable, Container, Generator, Mapping, Sequence
import contextlib
import functools
import inspect
import math
from numbers import Integral, Real
import operator
import types
import typing
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Interval

from selsync_jax import own_code, user_errors
from selsync_jax.renamed import hint


class ConfigError(ValueError):
  """A mistake in flags or config: one line with field, value and rule."""

  code = 2  # The exit code of the process.


class BusyError(ConfigError):
  """A folder or a port that another process uses; retry the command later.

  A network file system keeps the lock of a host that died for a while.
  """

  code = 1


class RunError(Exception):
  """A run that cannot continue: one line with place and reason."""

  code = 1  # The exit code of the process.


class LostError(RunError):
  """A run that the other islands have continued; the same command rejoins."""


class Stopped(Exception):
  """An error for a run that a signal stopped; it is saved and can resume."""


@contextlib.contextmanager
def config_errors(field: str) -> Generator[None]:
  """Converts a `ValueError` to a `ConfigError` that names `config.{field}`."""
  try:
    yield
  except ConfigError:
    raise
  except ValueError as error:
    raise ConfigError(f'config.{field}: {error}') from error


def lookup(table: Mapping[Any, Any], name: Any) -> Any:
  """Returns `table[name]`, or raises `ValueError` with all names."""
  if name not in table:
    known = ', '.join(map(str, table))
    raise ValueError(f'{name!r} is not one of {known}{hint(name, table)}')
  return table[name]


class Registry(dict[str, Any]):
  """A table by name, to which users add their own functions and classes.

  Messages call an entry a `kind`.
  """

  def __init__(self, kind: str, entries: Mapping[str, Any]):
    super().__init__(entries)
    self._kind = kind
    self._files: dict[str, str] = {}  # The files of users' entries.
    self._places: dict[str, own_code.Place | None] = {}  # Lines of these files.

  def register(self, definition: Any, entry: Any = None) -> Any:
    """Adds a user's function or class under its own name; returns it.

    A config file may be loaded again, and a cell of a notebook run again, so a
    definition replaces an earlier one from the same file. This package or
    another file must not have taken the name. If `entry` is given, the table
    holds it in place of the definition.
    """
    name, file = definition.__name__, _file(definition)
    if name in self and self._files.get(name) != file:
      where = self._files.get(name, 'selsync_jax')
      raise ConfigError(
        f'{self._kind} {name!r} in {file}: {where} has registered this name'
      )
    self[name] = definition if entry is None else entry
    self._files[name], self._places[name] = file, own_code.caller()
    return definition

  def is_own(self, name: str) -> bool:
    """Whether a user has added this entry."""
    return name in self and name in self._files

  def code(self, name: str) -> list[str]:
    """Returns the digests of an entry's source, if a user has added it."""
    return own_code.digests(self._places[name]) if self.is_own(name) else []

  @contextlib.contextmanager
  def errors(self, name: str, field: str) -> Generator[None]:
    """Converts errors of a user's entry to a `ConfigError` with file and line.

    Errors of this package's entries pass through. `field` is the config field
    that names the entry.
    """
    try:
      yield
    except (ConfigError, RunError):
      raise
    except user_errors.RAISED as error:
      if not self.is_own(name):
        raise
      line = user_errors.one_line(error, self._files[name])
      raise ConfigError(f'config.{field}: {line}') from error


def _file(definition: Any) -> str:
  """Returns the file of a definition; `__main__` in a notebook or a prompt."""
  with contextlib.suppress(OSError, TypeError):
    if definition.__module__ != '__main__':
      return inspect.getfile(definition)
  return definition.__module__


# Ranges that several parameters share. A number may be infinite only if its
# range includes infinity.
Count = Annotated[int, Ge(1)]
Index = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Threshold = Annotated[float, Interval(ge=0, le=math.inf)]
Share = Annotated[float, Interval(ge=0, lt=1)]
Fraction = Annotated[float, Interval(gt=0, le=1)]
Probability = Annotated[float, Interval(ge=0, le=1)]

INT32 = 2**31 - 1
"""The largest whole number that a field may have."""

FLOAT32 = (2 - 2**-23) * 2.0**127
"""The largest finite number that a field may have: the largest float32."""

_KINDS: dict[type, str] = {
  int: 'a whole number',
  float: 'a finite number',
  bool: 'true or false',
  str: 'a name',
}
_BOUNDS = ('ge', 'gt', 'le', 'lt')  # An `Interval`'s fields, and `operator`'s.


class Rule(NamedTuple):
  """The values that a parameter accepts."""

  # A key of `_KINDS`, `tuple`, `Mapping`, or `object` for any value.
  kind: type = object
  limits: Interval = Interval()  # The range of a number.
  names: tuple[Any, ...] = ()  # The allowed values, if they are listed.
  each: 'Rule | None' = None  # The rule of a tuple's element, a dict's value.
  optional: bool = False  # Whether it may be `None`.
  others: tuple[type, ...] = ()  # Types whose values are accepted unchecked.

  @property
  def words(self) -> str:
    """The required kind of value, in words."""
    if self.names:
      return ' or '.join(map(str, self.names))
    if self.each is not None and self.kind is Mapping:
      return f'a dict, and each value {self.each.words}'
    if self.each is not None:
      return f'a tuple, and each element {self.each.words}'
    infinite = self.kind is float and self.limits.le == math.inf
    return 'a number' if infinite else _KINDS.get(self.kind, 'a value')

  def __str__(self) -> str:
    """The rule in words: `a whole number in [1, 8]`, `one of mean, clone`."""
    if self.names:
      return f'one of {", ".join(map(str, self.names))}'
    return ' '.join(filter(None, [self.words, range_words(self.limits)]))

  def check(self, value: Any) -> None:
    """Raises `ValueError` with the rule that the value breaks, if any."""
    if isinstance(value, self.others) or (value is None and self.optional):
      return
    fits = value is not None and self._is_kind(value)
    if not fits or (self.names and value not in self.names):
      raise ValueError(f'must be {self.words}')
    if self.each is not None:
      for element in value.values() if self.kind is Mapping else value:
        self.each.check(element)
    if self.kind not in (int, float) or self.names:
      return
    for name in _BOUNDS:
      bound = getattr(self.limits, name)
      if bound is not None and not getattr(operator, name)(value, bound):
        raise ValueError(f'must be {range_words(self.limits)}')
    if isinstance(value, int) and abs(value) > INT32:
      raise ValueError(f'must be at most {INT32}')
    if math.isfinite(value) and abs(value) > FLOAT32:
      raise ValueError(f'must be at most {FLOAT32:g}')

  def _is_kind(self, value: Any) -> bool:
    if self.kind is object:
      return True
    if self.kind is tuple:
      return isinstance(value, tuple | list)
    if isinstance(value, bool):
      return self.kind is bool
    if self.kind is float:
      finite = isinstance(value, Real) and math.isfinite(value)
      return finite or (value == math.inf and self.limits.le == math.inf)
    if self.kind is int:
      return isinstance(value, Integral)
    return isinstance(value, self.kind) and value != ''


def rule(annotation: Any) -> Rule:
  """Reads a type, a union, a `Literal`, or an `Annotated` one of these.

  In a union, `None` makes the value optional. Types that a config cannot hold,
  such as arrays, are accepted without a check.
  """
  origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
  if origin is Annotated:
    limits = {
      name: bound
      for one in arguments[1:]
      for name in _BOUNDS
      if (bound := getattr(one, name, None)) is not None
    }
    return rule(arguments[0])._replace(limits=Interval(**limits))
  if origin in (types.UnionType, typing.Union):
    members = [rule(a) for a in arguments if a is not types.NoneType]
    plain = [m for m in members if m.kind is not object] or [Rule()]
    return plain[0]._replace(
      optional=types.NoneType in arguments,
      others=sum((m.others for m in members), ()),
    )
  if origin is Literal:
    return Rule(type(arguments[0]), names=arguments)
  if origin in (tuple, list, Sequence):
    return Rule(tuple, each=rule(arguments[0]))
  if origin is Mapping:
    return Rule(Mapping, each=rule(arguments[1]))
  if annotation in _KINDS:
    return Rule(annotation)
  unknown = annotation in (Any, inspect.Parameter.empty)
  kind = origin or annotation
  others = (kind,) if isinstance(kind, type) and not unknown else ()
  return Rule(others=others, optional=unknown)


def range_words(limits: Interval) -> str:
  """Returns a range in words: `in [0, 1)`, `at least 1`; empty if unlimited."""
  low = limits.ge if limits.gt is None else limits.gt
  high = limits.le if limits.lt is None else limits.lt
  if high in (None, math.inf):
    sign = 'at least' if limits.gt is None else 'above'
    return '' if low is None else f'{sign} {low:g}'
  if low is None:
    return f'{"at most" if limits.lt is None else "below"} {high:g}'
  opens, closes = '[('[limits.gt is not None], '])'[limits.lt is not None]
  low, high = (f'{x:g}' if isinstance(x, float) else x for x in (low, high))
  return f'in {opens}{low}, {high}{closes}'


Constructor = Callable[..., Any]


def parameters(
  constructor: Constructor, given: Container[str] | None = None
) -> dict[str, inspect.Parameter]:
  """Returns the parameters of a constructor that are fields of a config.

  The others are `given` by the caller: by default all but keyword-only ones.
  """
  every = inspect.signature(constructor, eval_str=True).parameters.values()
  return {
    p.name: p
    for p in every
    if (p.kind is p.KEYWORD_ONLY if given is None else p.name not in given)
    and p.kind is not p.VAR_KEYWORD
  }


def check_arguments(
  constructor: Constructor, arguments: Mapping[str, Any]
) -> None:
  """Raises `ValueError` for the first argument that breaks its annotation."""
  declared = inspect.signature(constructor, eval_str=True).parameters
  for name, value in arguments.items():
    try:
      rule(declared[name].annotation).check(value)
    except ValueError as error:
      raise ValueError(f'{name}={value!r}: {error}') from error


class Bound(NamedTuple):
  """A constructor with the fields of a config as its arguments, checked.

  An argument may itself be a `Bound`, or a tuple of them. Calling the
  constructor, in the context `errors`, calls these first.
  """

  constructor: Constructor
  arguments: Mapping[str, Any]
  path: str  # The dotted path of the fields in the config.
  errors: Callable[..., contextlib.AbstractContextManager[None]]
  code: Sequence[str] = ()  # See `Registry.code`.

  def __call__(self, *args: Any, **run: Any) -> Any:
    """Calls the constructor; its `ValueError` becomes a `ConfigError`.

    `run` holds values by parameter name. The constructor, and each `Bound`
    among its arguments, takes the values that match its parameters. They
    replace the config's fields.
    """
    call = inspect.signature(self.constructor).bind_partial(*args)
    own = call.signature.parameters
    call.arguments |= {k: made(v, run) for k, v in self.arguments.items()}
    call.arguments |= {name: run[name] for name in run if name in own}
    with config_errors(self.path), self.errors(self.path):
      return self.constructor(*call.args, **call.kwargs)

  def changed(self, **arguments: Any) -> 'Bound':
    """Replaces arguments, without a check."""
    return self._replace(arguments={**self.arguments, **arguments})


def made(argument: Any, run: Mapping[str, Any]) -> Any:
  """Returns an argument of a constructor; calls it if it is a `Bound`."""
  if isinstance(argument, Bound):
    return argument(**run)
  if type(argument) is tuple:  # Not a transformation of optax.
    return tuple(made(each, run) for each in argument)
  return argument


def flat(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Returns the leaves of a nested mapping by their dotted names."""
  fields = {}
  for name, value in config.items():
    if isinstance(value, Mapping):
      fields |= flat(value, f'{prefix}{name}.')
    else:
      fields[prefix + name] = value
  return fields


def set_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields that are set, which means not `None`."""
  return {name: value for name, value in fields.items() if value is not None}


Nested = Callable[[Any, Any, str], Any]
"""`nested(annotation, value, path)`: a `Bound` if the value itself consists of
fields, otherwise the value."""


def bind(
  table: Mapping[str, Constructor],
  fields: Mapping[str, Any],
  path: str,
  *,
  key: str = 'name',
  given: Container[str] | None = None,
  nested: Nested = lambda annotation, value, path: value,
) -> Bound:
  """Binds the fields of a config to the constructor that they name.

  Args:
    table: the constructors, by name.
    fields: the field `key`, a name in `table`, and that constructor's
      arguments. A field of another constructor must be `None` (not set).
    path: the dotted path of the fields in the config, for messages.
    key: the field that holds the name.
    given: see `parameters`.
    nested: a function from a field's value to an argument.

  Example:
    >>> def every(k: Count): return f'every {k} steps'
    >>> bind({'every': every}, {'name': 'every', 'k': 8}, 'x', given=())()
    'every 8 steps'
    >>> bind({'every': every}, {'name': 'every', 'k': 0}, 'x', given=())
    Traceback (most recent call last):
    selsync_jax.config.ConfigError: config.x.k=0: must be at least 1
  """
  name: Any = fields.get(key)
  with config_errors(f'{path}.{key}'):
    constructor = lookup(table, name)
  others = {field: value for field, value in fields.items() if field != key}
  arguments = bind_arguments(
    constructor, others, path, name=name, given=given, nested=nested
  )
  missing = [
    field
    for field, parameter in parameters(constructor, given).items()
    if parameter.default is parameter.empty
    and parameter.kind is not parameter.VAR_POSITIONAL
    and field not in arguments
  ]
  if missing:
    raise ConfigError(f'config.{path}: {name} needs {", ".join(missing)}')
  if not isinstance(table, Registry):
    return Bound(constructor, arguments, path, contextlib.nullcontext)
  errors = functools.partial(table.errors, name)
  return Bound(constructor, arguments, path, errors, table.code(name))


def bind_arguments(
  constructor: Constructor,
  fields: Mapping[str, Any],
  path: str,
  *,
  name: str,
  given: Container[str] | None = None,
  nested: Nested = lambda annotation, value, path: value,
) -> dict[str, Any]:
  """Checks fields of a config as arguments of a constructor; see `bind`."""
  accepted = parameters(constructor, given)
  for parameter in accepted.values():
    if parameter.kind is parameter.VAR_POSITIONAL:  # Fields of any name.
      elements = (
        nested(parameter.annotation, fields[field], f'{path}.{field}')
        for field in sorted(fields)
      )
      return {parameter.name: tuple(elements)}
  arguments = {}
  for field, value in fields.items():
    if field not in accepted and value is None:
      continue
    place = f'{path}.{field}'
    with config_errors(f'{place}={value!r}'):
      if field not in accepted:
        known = f'; it has {", ".join(accepted)}' if accepted else ''
        known += hint(field, accepted)
        raise ValueError(f'{name} has no {field}{known}; None unsets it')
      annotation = accepted[field].annotation
      arguments[field] = nested(annotation, value, place)
      if not isinstance(arguments[field], Bound):
        rule(annotation).check(value)
  return arguments
