"""The values that a search may choose for a field, and a file of them."""

import pathlib
import re
from typing import Any

import msgspec

from selsync_jax.config import ConfigError

ALL = 'all'
"""The section of a file with the fields of all methods."""

OWN = 'own'
"""The choice to leave a field as the config has it."""

_SECTIONS = ('sync', 'optimizer', 'schedule')
VARIED = (*_SECTIONS, 'epochs', 'steps')
"""Sections and fields that a search may vary; others change what is trained."""


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """The numbers from `low` to `high`: whole ones, if both of these are."""

  low: int | float
  high: int | float
  log: bool = True  # Whether each doubling is equally likely.

  def __post_init__(self):
    if not self.low < self.high:
      raise ValueError('low must be below high')
    if self.log and self.low <= 0:
      raise ValueError('low must be above 0, or log = false')

  @property
  def is_whole(self) -> bool:
    """Whether the numbers are whole."""
    return isinstance(self.low, int) and isinstance(self.high, int)


Choice = Range | tuple[str | bool | int | float, ...]
"""A range, or the values themselves."""

Choices = dict[str, Choice]
"""By field of the config, in dotted form."""


def is_named(line: str) -> bool:
  """Whether an error's line names a field that a search may vary."""
  return bool(re.search(rf'\bconfig\.({"|".join(VARIED)})\b', line))


def read(path: pathlib.Path) -> dict[str, Choices]:
  """Reads choices from a TOML file, by method or `ALL`, and by field.

  A choice is `{low = 1, high = 8, log = false}`, or a list of values.

  Raises:
    ConfigError: if the file has no such content.
  """
  try:
    given = msgspec.toml.decode(path.read_text(encoding='utf-8'))
  except OSError as error:
    raise ConfigError(f'--space={path}: {error.strerror}') from error
  except UnicodeDecodeError as error:
    raise ConfigError(f'--space={path}: must be UTF-8') from error
  except msgspec.MsgspecError as error:
    raise ConfigError(f'--space={path}: {error}') from error
  found: dict[str, Choices] = {}
  for method, fields in given.items():
    if not isinstance(fields, dict):
      raise ConfigError(f'--space={path}: {method}: must be in a section')
    found[method] = {}
    for field, choice in fields.items():
      try:
        found[method][field] = _choice(field, choice)
      except ValueError as error:
        where = f'--space={path}: [{method}] {field}'
        raise ConfigError(f'{where}: {error}') from error
  return found


def _choice(field: str, given: Any) -> Choice:
  """Returns a choice of a file; raises `ValueError` if it is not one."""
  if field.partition('.')[0] not in VARIED:
    raise ValueError(
      f'must be a field of {", ".join(VARIED)}; others change what is trained'
    )
  if field in _SECTIONS:
    raise ValueError(f'a name with dots needs quotes: "{field}.NAME"')
  if not given or not isinstance(given, dict | list):
    raise ValueError('must be a list of values, or {low = ..., high = ...}')
  if isinstance(given, dict):
    return msgspec.convert(given, Range)
  return msgspec.convert(given, tuple[str | bool | int | float, ...])
