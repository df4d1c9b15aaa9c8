"""Command-line flags, based on argparse.

A mistake raises a `ConfigError`: one line that names flag, value and rule.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import contextlib
import difflib
import pathlib
import re
import sys
from typing import Any, NoReturn

from selsync_jax.commands import COMMANDS
from selsync_jax.config import ConfigError, Positive, rule
from selsync_jax.fields import FIELDS

FIELD = re.compile(r'--?(no)?config\.([^=]*)(?:=(.*))?', re.S)
"""An argument that sets a field of the config: `no`, the name, the value."""

_FIELDS = (
  'Fields of constructors are flags, too: fields of the method in config.sync, '
  'see docs/methods.md; and fields of data sets, models, optimizers and '
  'schedules, see docs/fields.md. --config.sync.trigger=..., .averager, '
  '.reducer, .wire, .delay and .optimizer_state replace parts of the method.'
)


class _Help(argparse.HelpFormatter):
  """A formatter that shows each flag once, without a metavariable."""

  def _format_action_invocation(self, action: argparse.Action) -> str:
    return f'--{"[no]" * (action.nargs == "?")}{action.option_strings[0][2:]}'


class CommandLine(argparse.ArgumentParser):
  """The flags and positional arguments of one command.

  `positional` names the positional arguments in the usage; a single word means
  exactly one argument. `config` is the default of the flag `--config`. If one
  of the two is empty, the command has no such argument.
  """

  def __init__(self, command: str, positional: str = '', config: str = ''):
    usage = f'selsync {command} [--FLAG=VALUE ...] {positional}'
    super().__init__(
      usage=usage.rstrip(),
      description=COMMANDS[command],
      epilog=_FIELDS if config else '',
      formatter_class=_Help,
      add_help=False,  # `--help` does not list itself.
      allow_abbrev=False,
    )
    self.add_argument('-h', '--help', action='help', help=argparse.SUPPRESS)
    self._flags = self.add_argument_group()
    self._names: list[str] = []
    self._switches: set[str] = set()  # With their dashes.
    self._positional, self._has_config = positional, bool(config)
    if config:
      about = 'Config file, or the name of a built-in one; NAME:METHOD picks a'
      self.flag('config', f'{about} method.', default=config, dest='file')
      own = self.add_argument_group('fields of the config')
      for name, field in FIELDS.items():
        about = field.sentence
        if field.values:
          about += f' Values: {field.values}.'
        if field.default is not None:
          about += f' Default: {field.default}.'
        own.add_argument(f'--config.{name}', help=about)

  def flag(
    self,
    name: str,
    about: str,
    read: Callable[[str], Any] = str,
    default: str | None = None,
    **options: Any,
  ) -> None:
    """Defines a flag, `--name=VALUE` or `-name=VALUE`.

    `read` returns the value of a text, or raises `ValueError` with the rule;
    `default` is a text, too. `options` are more arguments of `add_argument`.
    """

    def parse(text):
      try:
        return read(text)
      except ValueError as error:
        line = f'--{name}={text}: {error}'
        raise argparse.ArgumentTypeError(line) from error

    self._names.append(name)
    self._flags.add_argument(
      *(f'--{name}', f'-{name}'),
      type=parse,
      default=default,
      help=f'{about} Default: {default}.' if default else about,
      **options,
    )

  def switch(self, name: str, about: str, default: bool = False) -> None:
    """Defines a flag that is on (`--name`) or off (`--noname`)."""
    self.flag(name, about, truth, nargs='?', const=True)
    self._switches |= {f'--{name}', f'-{name}'}
    off = (f'--no{name}', f'-no{name}')
    hidden = argparse.SUPPRESS
    self.add_argument(*off, dest=name, action='store_false', help=hidden)
    self.set_defaults(**{name: default})

  def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the values of the flags by name, with two lists of arguments.

    `positional` has the positional ones, `fields` each `--config.FIELD=VALUE`.
    """
    own, fields = _split(arguments) if self._has_config else (arguments, [])
    end = own.index('--') if '--' in own else len(own)
    # The word after a switch is not its value.
    given = [f'{x}=true' if x in self._switches else x for x in own[:end]]
    options, rest = self.parse_known_args([*given, *own[end:]])
    for argument in rest:
      if argument.startswith('-'):
        raise ConfigError(self._unknown(argument))
      if not self._positional:
        raise ConfigError(f'{argument!r} is not a flag')
    if self._positional.isalpha() and len(rest) != 1:
      raise ConfigError(f'needs one {self._positional}, got {len(rest)}')
    if self._has_config and sys.stdout.isatty():
      print('starting')  # The import of JAX takes a while.
    options.fields, options.positional = fields, rest
    return options

  def _unknown(self, argument: str) -> str:
    name = argument.lstrip('-').partition('=')[0]
    line = f'Unknown command line flag {name!r}'
    if near := difflib.get_close_matches(name, self._names, 1):
      line += f'; did you mean --{near[0]}?'
    if self._has_config:
      line += '; a field of the config is --config.FIELD=VALUE'
    return line

  def error(self, message: str) -> NoReturn:
    """Raises a `ConfigError` when argparse finds a mistake."""
    own = re.sub(r'^argument \S+: (?=--)', '', message)  # Of `flag`.
    raise ConfigError(re.sub(r'^argument (\S+?)(/\S+)?:', r'\1:', own))


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
  """Splits off the arguments that change the config."""
  own, fields = [], []
  rest = list(arguments)
  while rest:
    argument = rest.pop(0)
    if not FIELD.match(argument):
      own.append(argument)
      continue
    # The value may be the next argument: --config.seed 5.
    if rest and '=' not in argument and not re.match('--?[A-Za-z]', rest[0]):
      argument += f'={rest.pop(0)}'
    fields.append(argument)
  return own, fields


def reader(
  read: Callable[[str], Any],
  words: str,
  accepts: Callable[[Any], bool] = lambda value: True,
) -> Callable[[str], Any]:
  """Returns a function from a text to its checked value, for `flag`.

  `read` raises `ValueError` or `KeyError` for a text without a value; `words`
  is the rule, after "must be", that `accepts` checks.
  """

  def checked(text):
    with contextlib.suppress(ValueError, KeyError):
      if accepts(value := read(text)):
        return value
    raise ValueError(f'must be {words}')

  return checked


def of(annotation: Any) -> Callable[[str], Any]:
  """Returns a reader of the numbers of a type, such as `config.Count`."""
  limits = rule(annotation)

  def read(text):
    try:
      value = limits.kind(text)
    except ValueError as error:
      raise ValueError(f'must be {limits.words}') from error
    limits.check(value)
    return value

  return read


port = reader(int, 'a port, from 0 to 65535', range(65536).__contains__)


def address(text: str) -> tuple[str, int]:
  """Reads a port, of this host alone unless an address comes before it.

  >>> address('9464'), address('0.0.0.0:9464')
  (('127.0.0.1', 9464), ('0.0.0.0', 9464))
  """
  host, _, number = text.rpartition(':')
  return host.strip('[]') or '127.0.0.1', port(number)


_TRUTH = {'true': True, 't': True, '1': True}
_TRUTH |= {'false': False, 'f': False, '0': False}
truth = reader(lambda text: _TRUTH[text.lower()], 'true or false')


def rate(text: str) -> Callable[[float], float]:
  """Reads a learning rate; returns a function of the config's rate.

  >>> rate('0.2')(0.1), rate('3x')(0.1) == 3 * 0.1
  (0.2, True)
  """
  number = of(Positive)(text.removesuffix('x'))
  return lambda own: number * own if text.endswith('x') else number


rates = reader(
  lambda text: list(map(rate, text.split(','))),
  "numbers above 0 with commas between them, 2x for twice the config's rate",
)


def names(text: str) -> list[str]:
  """Reads names with commas between them; a tuple may contain commas.

  >>> names('bsp+schedule.milestones=(15.0,22.0),selsync')
  ['bsp+schedule.milestones=(15.0,22.0)', 'selsync']
  """
  found = _words(text)
  if '' in found:
    raise ValueError('must be names with commas between them')
  return found


def _words(text: str) -> list[str]:
  found, depth = [''], 0
  for sign in text:
    depth += (sign in '([') - (sign in ')]')
    if sign == ',' and depth <= 0:
      found.append('')
    else:
      found[-1] += sign
  return found


_OWN_FLAGS = {'seed': 'seeds', 'optimizer.learning_rate': 'lrs'}


def sweep(text: str) -> tuple[str, list[str]]:
  """Reads a field and its values.

  >>> sweep('sync.delta=0.1,1')
  ('sync.delta', ['0.1', '1'])
  >>> sweep('schedule.milestones=(1.0,2.0),(3.0,4.0)')
  ('schedule.milestones', ['(1.0,2.0)', '(3.0,4.0)'])
  """
  field, _, values = text.partition('=')
  each = _words(values)
  if not field or '' in each or len({*each}) < len(each):
    raise ValueError(
      'must be FIELD=VALUE,VALUE with the name of a field, such as sync.delta, '
      'and different values'
    )
  if field in _OWN_FLAGS:
    raise ValueError(f'use --{_OWN_FLAGS[field]}')
  return field, each


name = reader(
  str,
  'letters, digits, "_", "-" and ".", not starting with "-" or "."',
  lambda value: bool(re.fullmatch(r'\w[\w.-]*', value, re.ASCII)),
)


def bandwidth(text: str) -> float:
  """Reads a bandwidth such as `1Gbit`, in bits per second."""
  from selsync_jax.sync import network  # Imports JAX.

  return network.bandwidth(text)


def latency(text: str) -> float:
  """Reads a time such as `50us`, in seconds."""
  from selsync_jax.sync import network  # Imports JAX.

  return network.latency(text)


def duration(text: str) -> float:
  """Reads a time above 0 such as `5ms`, in seconds."""
  if seconds := latency(text):
    return seconds
  raise ValueError('must be above 0')


def _scaled(units: Mapping[str, float]) -> Callable[[str], float]:
  """Returns a function that reads a number with a unit; other text is 0."""
  form = re.compile(rf'(\d+\.?\d*|\.\d+) ?({"|".join(units)})')

  def read(text):
    found = form.fullmatch(text)
    return float(found[1]) * units[found[2]] if found else 0.0

  return read


_SIZES = {'B': 1.0, 'kB': 1e3, 'MB': 1e6, 'GB': 1e9, 'TB': 1e12}
size = reader(
  _scaled(_SIZES),
  f'a number above 0 and one of {", ".join(_SIZES)}',
  lambda value: value > 0,
)
_amount = _scaled({'': 1, 'k': 1e3, 'M': 1e6, 'B': 1e9})
count = reader(
  lambda text: round(_amount(text)),
  'a number of at least 1, perhaps with k, M or B',
  lambda value: value > 0,
)


def folder(text: str) -> pathlib.Path:
  """Reads the path of a folder on a file system; `~` is the user's home.

  An object store has no locks, no appending to files, and no atomic renaming of
  folders. docs/checkpoints.md describes an alternative.
  """
  if not text:
    raise ValueError('must not be empty')
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise ValueError('must be UTF-8, which orbax needs') from error
  if '://' in text:
    rule = 'must be a folder on a file system; train on one, and copy it to the'
    raise ValueError(f'{rule} object store')
  try:
    return pathlib.Path(text).expanduser()
  except RuntimeError as error:
    raise ValueError(f'cannot be expanded: {error}') from error
