"""The config of a command: a file, changed by command-line arguments."""

import ast
from collections.abc import Sequence
import pathlib
import re
import sys
import textwrap
import traceback
from typing import Any

from absl import logging
from absl.flags import Error
from absl.flags import FlagValues
import ml_collections
from ml_collections import config_flags

from selsync_jax.commands import flags
from selsync_jax.config import ConfigError

FIELDS = (
  'Every field of the config is a flag: --config.sync.delta=0.3. '
  'configs/base.py lists the fields, docs/methods.md those of config.sync. '
  '--config.sync.trigger=..., .averager, .reducer, .wire and .optimizer_state '
  'replace parts of the method.'
)
# What a simulation starts from; what the command line says comes after it.
SIMULATED = ('--config.mapper=vmap', '--config.cluster.compute=constant')
DEFAULT = 'digits'
_FIELD = re.compile(r'--?(no)?config\.')
_FOLDERS = (
  pathlib.Path('configs'),
  pathlib.Path(__file__).parents[1] / 'configs',
)


def find(file: str) -> str:
  """The path of a config file, with its variant if there is one.

  Args:
    file: `FILE`, `FILE:VARIANT`, or a bare `NAME` in place of `FILE`: that of
      `configs/NAME.py` in the working directory, or else of one of our own.

  Raises:
    ConfigError: if there is no such file.
  """
  name, colon, variant = file.partition(':')
  paths = [pathlib.Path(name)]
  if name.isidentifier():
    paths += [folder / f'{name}.py' for folder in _FOLDERS]
  for path in paths:
    if path.is_file():
      return f'{path}{colon}{variant}'
  own = [p.stem for p in sorted(_FOLDERS[1].glob('*.py'))]
  names = [n for n in own if n not in ('__init__', 'base')]
  raise ConfigError(
    f'--config={file}: there is no such file; our own are {", ".join(names)}'
  )


def load(file: str, fields: Sequence[str]) -> ml_collections.ConfigDict:
  """The config of a file.

  Args:
    file: as for `find`; the variant is the argument of its `get_config`.
    fields: arguments that change it, each `--config.FIELD=VALUE`.

  Raises:
    ConfigError: if there is no such file or field, or a value breaks its rule.
  """
  given = _joined(fields)
  parts, fields = _parts(given)
  unset, fields = _unset(fields)
  file = find(file)
  argv, values = ['', f'--config={file}', *fields], FlagValues()
  config = config_flags.DEFINE_config_file(
    'config', flag_values=values, sys_argv=argv
  )
  # Otherwise ml_collections runs the file in the module of the one before.
  sys.modules.pop('config_config', None)
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)  # Errors are raised as well.
  try:
    _, *rest = values(argv)
    _check_kind(config.value, file)
    _unset_all(config.value, unset)
    for path, value in parts:
      _set_part(config.value.sync, path, value)
  except ConfigError:
    raise
  except (Exception, SystemExit) as error:  # The file may raise anything.
    raise ConfigError(_message(error, file, given)) from error
  finally:
    logging.set_verbosity(verbosity)
  if rest:
    raise ConfigError(f'{rest[0]!r} is not a flag')
  from selsync_jax.training.rules import check_config  # Imports flax.

  check_config(config.value)
  return config.value


def _message(error: BaseException, file: str, fields: Sequence[str]) -> str:
  """The line about an error in a config file, or in a field."""
  path = file.partition(':')[0]
  if place := _place(error, path):
    return place
  if isinstance(error, Error):
    return ' '.join(str(error).removeprefix('flag ').split())
  # From a locked config.
  unknown = isinstance(error, AttributeError | KeyError)
  if unknown and (message := _unknown_field(error, fields)):
    return message
  # The cause lists the paths that were tried, on several lines.
  cause = error.__cause__ if isinstance(error, OSError) else None
  if 'get_config' in str(cause or error):
    return f'{path}: has no function get_config'
  return f'--config: {" ".join(str(cause or error).split())}'


def _place(error: BaseException | None, path: str) -> str | None:
  """File, line and message of an error that was raised in a config file.

  absl may have wrapped it in errors of its own.
  """
  while error is not None:
    lines = [
      frame.lineno
      for frame in traceback.extract_tb(error.__traceback__)
      if pathlib.Path(frame.filename).resolve() == pathlib.Path(path).resolve()
    ]
    if isinstance(error, SyntaxError):
      lines = [error.lineno or 1]
    if lines:
      text = ' '.join(str(getattr(error, 'msg', error)).split())
      return f'{path}:{lines[-1]}: {type(error).__name__}: {text}'
    error = error.__cause__ or error.__context__
  return None


def _joined(fields: Sequence[str]) -> list[str]:
  """The fields, each with its value in one argument."""
  joined: list[str] = []
  for argument in fields:
    if _FIELD.match(argument):
      joined.append(argument)
    else:
      joined[-1] += f'={argument}'
  return joined


def _unset(fields: Sequence[str]) -> tuple[list[str], list[str]]:
  """The fields that are set to None at last, and all others since then."""
  kept: dict[str, list[str]] = {}  # A tuple's flag may be repeated.
  for field in fields:
    name = _FIELD.sub('', field.partition('=')[0])
    before = [] if field.endswith('=None') else kept.get(name, [])
    kept[name] = [f for f in before if not f.endswith('=None')] + [field]
  every = [field for settings in kept.values() for field in settings]
  unset = [field for field in every if field.endswith('=None')]
  return unset, [field for field in every if field not in unset]


def _check_kind(config: Any, file: str) -> None:
  """Raises `ConfigError` if a config file returns something else."""
  if not hasattr(config, 'to_dict'):
    raise ConfigError(
      f'{file.partition(":")[0]}: get_config must return a ConfigDict, got '
      f'{config!r}'
    )


def _unset_all(config: Any, fields: Sequence[str]) -> None:
  """Sets fields to `None`; their rules say which may be."""
  for field in fields:
    *parents, last = field.partition('=')[0].lstrip('-').split('.')[1:]
    node = config
    for name in parents:
      node = node[name]
    _ = node[last]  # Raises KeyError if there is no such field.
    with node.ignore_type():
      node[last] = None


def _parts(
  fields: Sequence[str],
) -> tuple[list[tuple[list[str], Any]], list[str]]:
  """The parts of the method among the fields, and the other fields.

  The fields of a part depend on which one it is, so a config file cannot list
  them: `--config.sync.trigger=every --config.sync.trigger.k=8`.

  Returns:
    Paths below `config.sync` with their values, whole parts before their own
    fields; and the arguments that are no such path.
  """
  from selsync_jax.methods import PARTS  # Imports JAX.

  parts, others = [], []
  for field in fields:
    name, equals, text = field.lstrip('-').partition('=')
    path = name.split('.')
    if path[:2] != ['config', 'sync'] or not {*path[2:3]} & {*PARTS}:
      others.append(field)
      continue
    if not equals:
      raise ConfigError(f'{field}: needs a value')
    parts.append((path[2:], _literal(text)))
  return sorted(parts, key=lambda part: len(part[0])), others


def _literal(text: str) -> Any:
  """The value of a Python literal, or else the text itself."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def _set_part(
  sync: ml_collections.ConfigDict, path: Sequence[str], value: Any
) -> None:
  """Sets a part of a method, or a field of a part."""
  tree = {path[0]: sync[path[0]].to_dict()}
  *parents, last = path
  node: dict[str, Any] = tree
  for name in parents:
    if not isinstance(node.get(name, {}), dict):
      node[name] = {'name': node[name]}  # Until now, a part's name alone.
    node = node.setdefault(name, {})
  if parents:
    node[last] = value
  else:  # A whole part, or None: as in the method.
    node[last] = {} if value is None else {'name': value}
  with sync.unlocked():
    sync[path[0]] = ml_collections.ConfigDict(tree[path[0]])


def _unknown_field(error: Exception, fields: Sequence[str]) -> str | None:
  """The message about a field that ml_collections did not find."""
  cause = error.args[0]
  name, *hint = str(getattr(cause, 'args', error.args)[0]).split('\n')
  name = name.strip("'")
  for field in fields:
    if name in field.partition('=')[0].split('.'):
      return '; '.join([f'{field}: this config has no such field', *hint])
  return None


def refuse_simulation(config: ml_collections.ConfigDict) -> None:
  """Raises `ConfigError` if only `simulate` can run the config."""
  from selsync_jax import methods  # Imports JAX.

  only = 'only `python -m selsync_jax simulate` has virtual time'
  if config.cluster.compute is not None:
    raise ConfigError(
      f'config.cluster.compute={config.cluster.compute!r}: {only}'
    )
  if config.sync.method not in methods.METHODS:
    raise ConfigError(
      f'config.sync.method={config.sync.method!r}: is asynchronous, and {only}'
    )


def with_method(file: str, method: str) -> str:
  """`FILE` or `FILE:VARIANT`, with a method: `FILE:METHOD[,VARIANT]`."""
  path, _, variant = file.partition(':')
  return f'{path}:{",".join(filter(None, (method, variant)))}'


class ConfigCommandLine(flags.CommandLine):
  """The flags of a command that takes a config.

  Attributes:
    config: the flag `--config`, as for `find`.
    fields: arguments that change the config, each `--config.FIELD=VALUE`.
  """

  def __init__(self, command: str):
    super().__init__(command)
    self.fields: list[str] = []
    self.config = self.flag(
      'config',
      str,
      DEFAULT,
      'Config file, or the name of one of our own; NAME:METHOD picks a method.',
    )

  @property
  def config_name(self) -> str:
    """The name of the config file, without folder and suffix."""
    return pathlib.Path(self.config.value.partition(':')[0]).stem

  @property
  def variant(self) -> list[str]:
    """What follows the config file: `FILE:METHOD,smoke` has two parts."""
    return list(filter(None, self.config.value.partition(':')[2].split(',')))

  def parse(self, arguments: Sequence[str]) -> list[str]:
    """As in `flags.CommandLine`; also takes out the fields of the config."""
    own, self.fields = _split(arguments)
    try:
      positional = super().parse(own)
    except ConfigError as error:
      if 'Unknown' not in str(error):
        raise
      hint = 'a field of the config is --config.FIELD=VALUE'
      raise ConfigError(f'{error}; {hint}') from error
    if sys.stdout.isatty():
      print('starting')  # What follows imports JAX, and more.
    return positional

  def load(self) -> ml_collections.ConfigDict:
    """The config of the file, changed by the fields."""
    return load(self.config.value, self.fields)

  def help(self) -> str:
    """The text of `--help`."""
    return f'{super().help()}\n\n{textwrap.fill(FIELDS, flags.width())}'


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
  """The command's own arguments, and those that change the config."""
  own, fields = [], []
  rest = list(arguments)
  while rest:
    argument = rest.pop(0)
    if not _FIELD.match(argument):
      own.append(argument)
      continue
    fields.append(argument)
    # The value may be an argument of its own: --config.seed 5.
    if rest and '=' not in argument and not re.match('--?[A-Za-z]', rest[0]):
      fields.append(rest.pop(0))
  return own, fields
