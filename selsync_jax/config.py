"""Errors that end a command, tables of names, and rules for config fields.

The table here has the rules of fields that belong to no single folder; data,
models and optimizers have tables of their own. A rule on several values is
checked by the function that takes them, which raises `ValueError`;
`config_errors` turns that into a `ConfigError` that names the field.
"""

from collections.abc import Callable, Container, Iterator, Mapping
import contextlib
import inspect
import math
from typing import Any, NamedTuple


class ConfigError(Exception):
  """A mistake in flags or config: one line with field, value and rule."""

  code = 2  # The exit code of the process.


class RunError(Exception):
  """A run that cannot continue: one line with place and reason."""

  code = 1  # The exit code of the process.


@contextlib.contextmanager
def config_errors(field: str) -> Iterator[None]:
  """Converts a `ValueError` to a `ConfigError` that names `config.{field}`."""
  try:
    yield
  except ValueError as error:
    raise ConfigError(f'config.{field}: {error}') from error


def lookup(table: Mapping[Any, Any], name: Any) -> Any:
  """Returns `table[name]`.

  Raises:
    ValueError: if there is no such entry; the message lists all names.
  """
  if name not in table:
    raise ValueError(f'{name!r} is not one of {", ".join(map(str, table))}')
  return table[name]


class Registry(dict[str, Any]):
  """A table by name, to which users add what they have defined.

  Args:
    kind: what its entries are, in words.
    entries: our own.
    reserved: other names of ours.
  """

  def __init__(
    self,
    kind: str,
    entries: Mapping[str, Any],
    reserved: Container[str] = (),
  ):
    super().__init__(entries)
    self._kind, self._reserved = kind, reserved
    self._files: dict[str, str] = {}  # Of what users have added.

  def register(self, definition: Any, entry: Any = None) -> Any:
    """Adds a user's function or class under its own name; returns it.

    A config file may be loaded again, and a cell of a notebook run again, so a
    definition replaces one of the same file.

    Args:
      definition: has the name.
      entry: what is added; by default the definition itself.

    Raises:
      ConfigError: if the name is one of ours, or of another file.
    """
    name, file = definition.__name__, _file(definition)
    is_taken = name in self or name in self._reserved
    if is_taken and self._files.get(name) != file:
      where = self._files.get(name, 'selsync_jax')
      raise ConfigError(
        f'{self._kind} {name!r}, of {file}: {where} has registered this name'
      )
    self[name] = definition if entry is None else entry
    self._files[name] = file
    return definition

  def is_own(self, name: str) -> bool:
    """Whether a user has added this entry."""
    return name in self and name in self._files

  @contextlib.contextmanager
  def errors(self, name: str, field: str) -> Iterator[None]:
    """Converts errors of a user's entry to a `ConfigError` with file and line.

    Errors of our own entries are passed on.

    Args:
      name: of the entry.
      field: of the config.
    """
    try:
      yield
    except (ConfigError, RunError):
      raise
    except Exception as error:
      if not self.is_own(name):
        raise
      file, line, trace = self._files[name], '', error.__traceback__
      while trace:
        if trace.tb_frame.f_code.co_filename == file:
          line = f':{trace.tb_lineno}'
        trace = trace.tb_next
      text = ' '.join(str(error).split())[:300]
      raise ConfigError(
        f'config.{field}: {file}{line}: {type(error).__name__}: {text}'
      ) from error


def _file(definition: Any) -> str:
  """Where something is defined; for a notebook or a prompt, `__main__`."""
  with contextlib.suppress(OSError, TypeError):
    if definition.__module__ != '__main__':
      return inspect.getfile(definition)
  return definition.__module__


def keyword_arguments(
  function: Callable[..., Any], name: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the fields that are not `None`, as keyword arguments.

  Args:
    function: has a keyword-only parameter for each field it accepts.
    name: what messages call the function.
    fields: by name of the parameter; `None` means not set.

  Raises:
    ValueError: if a field is set that the function does not accept, or one is
      not set that has no default.
  """
  parameters = inspect.signature(function).parameters.values()
  accepted = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
  arguments = {k: v for k, v in fields.items() if v is not None}
  for field, value in arguments.items():
    if field not in accepted:
      raise ValueError(f'{name} has no {field}, got {value!r}')
  for field, parameter in accepted.items():
    if parameter.default is parameter.empty and field not in arguments:
      raise ValueError(f'{name} needs {field}, got None')
  return arguments


class Rule(NamedTuple):
  """What a field's value must be.

  Attributes:
    kinds: its types.
    kind: the types in words.
    accepts: which values of these types it may have.
    words: the same in words.
    optional: whether it may be `None`, not set.
  """

  kinds: tuple[type, ...]
  kind: str
  accepts: Callable[[Any], bool]
  words: str
  optional: bool = False

  def broken(self, value: Any) -> str | None:
    """Says what a value must be, if it is not."""
    if value is None:
      return None if self.optional else f'must be {self.kind}'
    if (
      not isinstance(value, self.kinds)
      or (isinstance(value, bool) and bool not in self.kinds)
      or (isinstance(value, float) and not math.isfinite(value))
    ):
      return f'must be {self.kind}'
    return None if self.accepts(value) else f'must be {self.words}'


_INT32 = 2**31 - 1


def whole(least: int, most: int = _INT32) -> Rule:
  """A whole number in [least, most]."""
  words = f'in [{least}, {most}]' if most < _INT32 else f'at least {least}'
  return Rule((int,), 'a whole number', lambda v: least <= v <= most, words)


def number(
  least: float = -math.inf, most: float = math.inf, *, above: float = -math.inf
) -> Rule:
  """A number in [least, most], and larger than `above`."""
  low = f'above {above:g}' if above > -math.inf else f'at least {least:g}'
  high = f'at most {most:g}'
  sides = [low] * (max(least, above) > -math.inf) + [high] * (most < math.inf)
  return Rule(
    (int, float),
    'a finite number',
    lambda v: least <= v <= most and v > above,
    ' and '.join(sides),
  )


def share(*, may_be_one: bool = False) -> Rule:
  """A number in [0, 1), or in [0, 1]."""
  return Rule(
    (int, float),
    'a finite number',
    lambda v: 0 <= v < 1 or (may_be_one and v == 1),
    f'in [0, 1{"]" if may_be_one else ")"}',
  )


def numbers(*, above: float) -> Rule:
  """A tuple of numbers larger than `above`."""
  each = number(above=above)
  return Rule(
    (tuple, list),
    'a tuple of numbers',
    lambda values: not any(map(each.broken, values)),
    f'finite numbers above {above:g}',
  )


def one_of(*names: Any) -> Rule:
  """One of a few values."""
  kind = type(names[0])
  words = ' or '.join(map(str, names))
  return Rule((kind,), words, lambda v: v in names, words)


def optional(rule: Rule) -> Rule:
  """The rule, or `None`."""
  return rule._replace(optional=True)


FLAG = Rule((bool,), 'true or false', lambda v: True, '')
TEXT = Rule((str,), 'a name', bool, 'a name')
NAMES = Rule(
  (list, tuple),
  'a list of names',
  lambda v: all(isinstance(name, str) for name in v),
  'a list of names',
)

RULES = {
  'workers': whole(1, 4096),
  'mapper': one_of('auto', 'pmap', 'vmap', 'map', 'mesh'),
  'device': one_of('auto', 'cpu', 'gpu', 'tpu'),
  'mesh.data': whole(1, 4096),
  'mesh.fsdp': whole(1, 4096),
  'seed': whole(0)._replace(words='in [0, 2**31)'),
  'steps': optional(whole(1, 10**8)),
  'epochs': optional(number(above=0, most=1e6)),
  'batch_size': whole(1, 10**6),
  'eval.every_epochs': number(above=0, most=1e6),
  'eval.batch_size': whole(1, 2**16),
  'checkpoint.every': whole(1),
  'checkpoint.keep': whole(1),
  'checkpoint.resize': one_of('mean', 'clone'),
  'checkpoint.resize_batch': one_of('total', 'worker'),
  'log.every': whole(1),
  'log.fetch_every': whole(1),
  'log.seconds': number(above=0),
  'log.to': NAMES,
  'check_replicas': whole(0),
  'on_nonfinite': one_of('stop', 'skip'),
  'max_skips': whole(1),
}


def check_fields(
  fields: Mapping[str, Any], rules: Mapping[str, Rule], prefix: str = ''
) -> None:
  """Raises `ConfigError` for the first field that breaks its rule.

  Args:
    fields: values by name; those without a rule are not looked at.
    rules: by name of the field.
    prefix: of the names in messages.
  """
  for field, rule in rules.items():
    if field in fields and (message := rule.broken(fields[field])):
      raise ConfigError(f'config.{prefix}{field}={fields[field]!r}: {message}')
