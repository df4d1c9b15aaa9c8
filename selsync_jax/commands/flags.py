"""Command-line flags, by absl.

Every call of a command has its own `FlagValues`, so commands do not share
flags, and one process can call several. A mistake is a `ConfigError`: one line
that names flag, value and rule.
"""

from collections.abc import Callable, Sequence
import contextlib
import math
import pathlib
import shutil
import sys
import textwrap
from typing import Any

from absl import flags

from selsync_jax.commands import COMMANDS
from selsync_jax.config import ConfigError


def width() -> int:
  """Columns of the text of `--help`: at most 80, fewer on a narrow terminal."""
  return min(80, max(50, shutil.get_terminal_size().columns))


class _Parser(flags.ArgumentParser):
  """Reads a flag's value with a function."""

  def __init__(self, read: Callable[[str], Any]):
    self._read = read

  def parse(self, argument: str) -> Any:
    """Returns the value of a text, or raises `ValueError`."""
    return self._read(argument)


class CommandLine:
  """The flags and positional arguments of one command.

  Args:
    command: a name in `COMMANDS`.
    positional: what the usage calls the positional arguments; empty if the
      command takes none.
    interspersed: whether flags may follow positional arguments. Otherwise
      everything from the first one on is positional.
  """

  def __init__(
    self, command: str, positional: str = '', *, interspersed: bool = True
  ):
    self._command, self._positional = command, positional
    self._values = flags.FlagValues()
    self._values.set_gnu_getopt(interspersed)
    self._names: list[str] = []
    self._help = flags.DEFINE_bool(
      'help', False, 'Print this.', short_name='h', flag_values=self._values
    )

  def flag(
    self,
    name: str,
    read: Callable[[str], Any],
    default: str | None,
    description: str,
  ) -> flags.FlagHolder:
    """Defines a flag; `parse` sets the `value` of what this returns.

    Args:
      name: without dashes.
      read: returns the value of a text, or raises `ValueError` with the rule.
      default: as text, or `None`.
      description: a sentence for `--help`.
    """
    self._names.append(name)
    return flags.DEFINE(
      _Parser(read), name, default, description, flag_values=self._values
    )

  def switch(
    self, name: str, default: bool, description: str
  ) -> flags.FlagHolder[bool]:
    """Defines a flag that is on (`--name`) or off (`--noname`)."""
    self._names.append(name)
    return flags.DEFINE_bool(
      name, default, description, flag_values=self._values
    )

  def parse(self, arguments: Sequence[str]) -> list[str]:
    """Sets the values of the flags.

    Args:
      arguments: the command line after the command's name.

    Returns:
      The positional arguments.

    Raises:
      ConfigError: for an unknown flag, or a value that breaks its rule.
      SystemExit: with code 0, after `--help` was printed.
    """
    try:
      _, *positional = self._values([self._command, *arguments])
    except (flags.Error, ValueError) as error:
      raise ConfigError(str(error).removeprefix('flag ')) from error
    if self._help.value:
      print(self.help())
      sys.exit(0)
    if positional and not self._positional:
      raise ConfigError(f'{positional[0]!r} is not a flag')
    return positional

  def help(self) -> str:
    """The text of `--help`."""
    usage = f'usage: selsync {self._command} [--FLAG=VALUE ...]'
    lines = [f'{usage} {self._positional}'.rstrip()]
    lines += ['', COMMANDS[self._command], '']
    defined = [self._values[name] for name in self._names]
    names = [f'  --{"[no]" * flag.boolean}{flag.name}' for flag in defined]
    indent = max(map(len, names)) + 2
    for name, flag in zip(names, defined, strict=True):
      text = flag.help
      if flag.default is not None and not flag.boolean:
        text += f' Default: {flag.default_unparsed}.'
      lines += textwrap.wrap(
        text,
        width(),
        initial_indent=name.ljust(indent),
        subsequent_indent=' ' * indent,
        break_on_hyphens=False,
      )
    return '\n'.join(lines)


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
