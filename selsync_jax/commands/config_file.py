"""The config of a command: a file, changed by command-line arguments."""

import ast
from collections.abc import Callable, Mapping, Sequence
import contextlib
import difflib
from importlib import machinery, util
import pathlib
import sys
from typing import Any, TYPE_CHECKING

from selsync_jax import renamed, user_errors
from selsync_jax.commands import flags, neighbors
from selsync_jax.config import ConfigError, parameters

if TYPE_CHECKING:
  import ml_collections

  from selsync_jax.training.settings import Settings
# A simulation sets these fields before the command line's fields.
SIMULATED = (
  '--config.mapper=vmap',
  '--config.virtual_cluster.compute=constant',
)
DEFAULT = 'digits'
OWN = (pathlib.Path(__file__).parents[1] / 'configs').resolve()
_FOLDERS = pathlib.Path('configs'), OWN
_MODULE = 'config_file'  # The name under which a config file is imported.


def load(file: str, fields: Sequence[str]) -> 'ml_collections.ConfigDict':
  """Returns the checked config of a file; see `settings`."""
  return settings(file, fields).config


def settings(file: str, fields: Sequence[str]) -> 'Settings':
  """Returns the config of a file as checked settings.

  Args:
    file: `FILE` or `FILE:VARIANT`. A bare `NAME` means `configs/NAME.py` in the
      working directory, or else a built-in config. The variant goes to the
      file's `get_config`.
    fields: arguments that change it, each `--config.FIELD=VALUE`.

  Raises:
    ConfigError: if there is no such file or field, or a value breaks its rule.
  """
  # A failing import here is not a mistake in the config file.
  from selsync_jax.training.settings import check

  _, colon, variant = file.partition(':')
  config = _execute(find(file), [variant] if colon else [])
  given: dict[str, list[str]] = {}
  for argument in fields:
    given.setdefault(str(_match(argument)[1]), []).append(argument)
  # Sets a whole part before the fields of that part.
  for name in sorted(given, key=lambda name: name.count('.')):
    _set(config, name.split('.'), given[name])
  return check(config)


def arguments(fields: Mapping[str, Any] | None) -> list[str]:
  """Returns the arguments that set fields, given by their dotted names."""
  return [f'--config.{name}={value}' for name, value in (fields or {}).items()]


def find(file: str) -> str:
  """Returns the path of a config file, without its variant."""
  name = file.partition(':')[0]
  paths = [pathlib.Path(name)]
  if name.isidentifier():
    paths += [folder / f'{name}.py' for folder in _FOLDERS]
  for path in paths:
    if path.is_file():
      return str(path)
  own = [p.stem for p in sorted(OWN.glob('*.py'))]
  names = [n for n in own if n not in ('__init__', 'base')]
  raise ConfigError(
    f'--config={file}: there is no such file; the built-in configs are '
    f'{", ".join(names)}'
  )


def _execute(path: str, variant: list[str]) -> 'ml_collections.ConfigDict':
  """Runs a config file, and returns the locked result of its `get_config`."""
  import ml_collections

  loader = machinery.SourceFileLoader(_MODULE, path)
  spec = util.spec_from_file_location(_MODULE, path, loader=loader)
  assert spec is not None
  module = sys.modules[_MODULE] = util.module_from_spec(spec)
  is_ours = pathlib.Path(path).resolve().parent == OWN
  try:
    with contextlib.nullcontext() if is_ours else neighbors.importable(path):
      loader.exec_module(module)
      if not hasattr(module, 'get_config'):
        raise ConfigError(f'{path}: has no function get_config')
      config = module.get_config(*variant)
  except ConfigError:
    raise
  except user_errors.RAISED as error:
    raise ConfigError(user_errors.one_line(error, f'{path}:1')) from error
  if not isinstance(config, ml_collections.ConfigDict):
    raise ConfigError(
      f'{path}: get_config must return a ConfigDict, got {config!r}'
    )
  config.lock()
  return config


def _set(
  config: 'ml_collections.ConfigDict', path: list[str], given: list[str]
) -> None:
  """Sets the field at `path`, or a part of the method, from its arguments.

  The last argument wins, except that the arguments of a tuple are concatenated,
  starting after the last `None`.
  """
  from selsync_jax.methods import (
    METHODS,  # Imports JAX.
    PARTS,
  )

  is_part = path[0] == 'sync' and bool({*path[1:2]} & {*PARTS})
  holder: Any = config
  node: Any = config
  for name in path[:2] if is_part else path:
    known = list(node) if hasattr(node, 'get_type') else []
    if name not in known:
      # A field of another method is no typing error.
      others = {field for m in METHODS.values() for field in parameters(m)}
      near = difflib.get_close_matches(name, known, 1, 0.75)
      near = [] if name in others else near
      hint = f'; Did you mean "{near[0]}" instead of "{name}"?' if near else ''
      hint = renamed.hint(name, known) or hint
      raise ConfigError(f'{given[-1]}: this config has no such field{hint}')
    holder, node = node, node[name]
  if is_part:
    _set_part(config.sync, path[1:], _read(given[-1], object))
    return
  kind = holder.get_type(path[-1])
  value: Any = None
  for read in (_read(argument, kind) for argument in given):
    adds = isinstance(read, tuple | list) and value is not None
    value = value + read if adds else read
  if hasattr(kind, 'get_type') and not isinstance(value, dict):
    raise ConfigError(f'{given[-1]}: must be a dict of fields')
  with holder.ignore_type():  # None has another type.
    holder[path[-1]] = value


def _read(argument: str, kind: Any) -> Any:
  no, _, text = _match(argument)
  if kind is bool and text is None:
    return not no
  if no or text is None:
    wrong = 'takes no value' if kind is bool else 'needs a value'
    raise ConfigError(f'{argument}: {wrong}')
  try:
    return None if text == 'None' else _READERS.get(kind, _literal)(text)
  except ValueError as error:
    raise ConfigError(f'{argument}: {error}') from error


def _match(argument: str) -> Sequence[str | None]:
  """Returns `no`, the name and the value in an argument; see `flags.FIELD`."""
  if found := flags.FIELD.fullmatch(argument):
    return found.groups()
  raise ConfigError(f'{argument!r} is not a flag')


def _literal(text: str) -> Any:
  """Returns the value of a Python literal, or else the text itself."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError, TypeError):  # TypeError: `{[]: 1}`.
    return text


def _tuple(text: str) -> tuple[Any, ...]:
  """Returns the elements of a Python literal; other text is one element."""
  value = _literal(text)
  return tuple(value) if isinstance(value, tuple | list) else (value,)


# The reader of each type of field; other types read literals.
_READERS: dict[type, Callable[[str], Any]] = {
  str: str,
  bool: flags.truth,
  int: flags.reader(
    lambda text: int(text, 16 if text[:2] == '0x' else 10), 'a whole number'
  ),
  float: flags.reader(float, 'a number'),
  tuple: _tuple,
  list: lambda text: list(_tuple(text)),
}


def _set_part(
  sync: 'ml_collections.ConfigDict', path: Sequence[str], value: Any
) -> None:
  from selsync_jax.methods.parts import BARE

  tree = {path[0]: sync[path[0]].to_dict()}
  *parents, last = path
  node: dict[str, Any] = tree
  for name in parents:
    if not isinstance(node.get(name, {}), dict):
      node[name] = {'name': node[name]}  # The value was only the part's name.
    node = node.setdefault(name, {})
  if parents:
    node[last] = value
  else:  # A whole part; None restores the method's own.
    node[last] = {} if value is None else {BARE[last]: value}
  with sync.unlocked():
    sync[path[0]] = tree[path[0]]


def refuse_simulation(config: 'ml_collections.ConfigDict') -> None:
  """Raises `ConfigError` if the config needs the command `simulate`."""
  from selsync_jax import methods  # Imports JAX.

  only = 'only `python -m selsync_jax simulate` has virtual time'
  if config.virtual_cluster.compute is not None:
    raise ConfigError(
      f'config.virtual_cluster.compute={config.virtual_cluster.compute!r}: '
      f'{only}'
    )
  if config.sync.method in methods.METHODS:
    return
  from selsync_jax.simulate.asynchronous import ASYNCHRONOUS

  if config.sync.method in ASYNCHRONOUS:
    raise ConfigError(
      f'config.sync.method={config.sync.method!r}: is asynchronous, and {only}'
    )


def register(file: str, fields: Sequence[str]) -> None:
  """Runs a file, without its variant, for the methods that it may register."""
  settings(file.partition(':')[0], fields)


def with_method(file: str, method: str) -> str:
  """Adds a method to `FILE` or `FILE:VARIANT`: `FILE:METHOD[,VARIANT]`."""
  path, _, variant = file.partition(':')
  return f'{path}:{",".join(filter(None, (method, variant)))}'


def names(file: str) -> list[str]:
  """Splits `FOLDER/NAME.py:METHOD,smoke` into `NAME`, `METHOD` and `smoke`."""
  path, _, variant = file.partition(':')
  return [pathlib.Path(path).stem, *filter(None, variant.split(','))]
