"""Command-line flags, by argparse.

A mistake is a `ConfigError`: one line that names flag, value and rule.
"""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import difflib
import math
import pathlib
import re
from typing import Any, NoReturn

from selsync_jax.commands import COMMANDS
from selsync_jax.config import ConfigError


class _Help(argparse.HelpFormatter):
  """Names each flag once, without a word for its value."""

  def _format_action_invocation(self, action: argparse.Action) -> str:
    return f'--{"[no]" * (action.nargs == "?")}{action.option_strings[0][2:]}'


class CommandLine(argparse.ArgumentParser):
  """The flags and positional arguments of one command.

  Args:
    command: a name in `COMMANDS`.
    positional: what the usage calls the positional arguments; empty if the
      command takes none.
    epilog: a paragraph for the end of `--help`.
  """

  hint = ''  # What follows the line about an unknown flag.

  def __init__(
    self, command: str, positional: str = '', epilog: str | None = None
  ):
    usage = f'selsync {command} [--FLAG=VALUE ...] {positional}'
    super().__init__(
      usage=usage.rstrip(),
      description=COMMANDS[command],
      epilog=epilog,
      formatter_class=_Help,
      add_help=False,  # It would list itself.
      allow_abbrev=False,
    )
    self.add_argument('-h', '--help', action='help', help=argparse.SUPPRESS)
    self._flags = self.add_argument_group()
    self._names: list[str] = []
    self._positional = positional

  def flag(
    self,
    name: str,
    read: Callable[[str], Any],
    default: str | None,
    description: str,
    **options: Any,
  ) -> None:
    """Defines a flag, `--name=VALUE`; a single dash does as well.

    Args:
      name: without dashes.
      read: returns the value of a text, or raises `ValueError` with the rule.
      default: as text, or `None`.
      description: a sentence for `--help`.
      **options: for `add_argument`.
    """
    if isinstance(default, str):
      description += f' Default: {default}.'
    self._names.append(name)
    self._flags.add_argument(
      *(f'--{name}', f'-{name}'),
      type=checked(name, read),
      default=default,
      help=description,
      **options,
    )

  def switch(self, name: str, default: bool, description: str) -> None:
    """Defines a flag that is on (`--name`) or off (`--noname`)."""
    self.flag(name, truth, None, description, nargs='?', const=True)
    self.add_argument(
      *(f'--no{name}', f'-no{name}'),
      dest=name,
      action='store_false',
      help=argparse.SUPPRESS,
    )
    self.set_defaults(**{name: default})

  def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
    """The values of the flags, by name, and `positional`, a list.

    Args:
      arguments: the command line after the command's name.

    Raises:
      ConfigError: for an unknown flag, or a value that breaks its rule.
      SystemExit: with code 0, after `--help` was printed.
    """
    options, rest = self.parse_known_args(arguments)
    for argument in rest:
      if argument.startswith('-'):
        name = argument.lstrip('-').partition('=')[0]
        near = difflib.get_close_matches(name, self._names, 1)
        hint = f'; did you mean --{near[0]}?' if near else ''
        raise ConfigError(
          f'Unknown command line flag {name!r}{hint}{self.hint}'
        )
    if rest and not self._positional:
      raise ConfigError(f'{rest[0]!r} is not a flag')
    options.positional = rest
    return options

  def error(self, message: str) -> NoReturn:
    """Raises a `ConfigError`; argparse calls it."""
    raise ConfigError(re.sub(r'^argument (\S+?)(/\S+)?:', r'\1:', message))


def checked(name: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
  """A reader whose `ValueError` is a `ConfigError` about a flag."""

  def parse(text):
    try:
      return read(text)
    except ValueError as error:
      raise ConfigError(f'--{name}={text}: {error}') from error

  return parse


def truth(text: str) -> bool:
  """Reads true or false."""
  for value, words in ((True, 'true t 1'), (False, 'false f 0')):
    if text.lower() in words.split():
      return value
  raise ValueError('must be true or false')


def whole(minimum: int) -> Callable[[str], int]:
  """A reader of whole numbers of at least `minimum`."""

  def read(text):
    if not text.isdecimal() or int(text) < minimum:
      raise ValueError(f'must be a whole number of at least {minimum}')
    return int(text)

  return read


def numbers(text: str) -> list[float]:
  """Reads numbers with commas between them."""
  try:
    return [float(number) for number in text.split(',')]
  except ValueError as error:
    raise ValueError('must be numbers with commas between them') from error


def folder(text: str) -> pathlib.Path:
  """Reads the path of a folder on a file system; `~` is the user's home.

  An object store is none: it has no locks, a file cannot grow there, and a
  folder cannot be renamed at once. docs/checkpoints.md says what to do instead.
  """
  if not text:
    raise ValueError('must not be empty')
  if '://' in text:
    raise ValueError(
      'must be a folder on a file system; train on one, and copy it to the '
      'object store'
    )
  try:
    return pathlib.Path(text).expanduser()
  except RuntimeError as error:
    raise ValueError(f'has no home: {error}') from error


def names(text: str) -> list[str]:
  """Reads names with commas between them."""
  return text.split(',')


def positive(text: str) -> float:
  """Reads a finite number above 0."""
  with contextlib.suppress(ValueError):
    if 0 < float(text) < math.inf:
      return float(text)
  raise ValueError('must be a finite number above 0')


def lssr(text: str) -> float:
  """Reads an LSSR, a number in [0, 1)."""
  with contextlib.suppress(ValueError):
    if 0 <= float(text) < 1:
      return float(text)
  raise ValueError('must be a number in [0, 1)')
