"""The source of a run's weights, and the translation of their names.

A table of `(pattern, replacement)` translates the names of arrays. Its rows are
applied one after another.
"""

from collections.abc import Iterable, Sequence
import pathlib
import re
from typing import Any, NamedTuple

from selsync_jax.config import config_errors, ConfigError

_SHOWN = 4  # Names in a line.


class Source(NamedTuple):
  """A run or a file, and a table that translates its names."""

  path: pathlib.Path
  rename: tuple[tuple[re.Pattern[str], str | None], ...]

  def __str__(self) -> str:
    """The field of the config, for messages."""
    return f'config.init_from={str(self.path)!r}'

  def translated(self, found: Iterable[str]) -> dict[str, str]:
    """Returns the names found in the source, by their names in the model.

    Names that the table drops are left out. It raises `ConfigError` if two
    names become the same, or if a row matches none.
    """
    names: dict[str, str] = {}
    fitted = set()
    for old in found:
      name = old
      for row, (pattern, replacement) in enumerate(self.rename):
        if not pattern.search(name):
          continue
        fitted.add(row)
        if replacement is None:
          break
        name = pattern.sub(replacement, name)
      else:
        if name in names:
          raise ConfigError(
            f'config.init_rename: {names[name]} and {old} both become {name}'
          )
        names[name] = old
    for row, (pattern, _) in enumerate(self.rename):
      if row not in fitted:
        raise ConfigError(
          f'config.init_rename[{row}], {pattern.pattern!r}, matches no name in '
          f'{self.path}: {some(found)}'
        )
    return names


def bind(path: str | None, rename: Sequence[Any] | None) -> Source | None:
  """Checks the fields `init_from` and `init_rename` of a config; reads nothing.

  It returns `None` if the seed initializes all weights.
  """
  if path is None:
    if rename:
      raise ConfigError(f'config.init_rename={rename!r}: needs init_from')
    return None
  rows = []
  for index, row in enumerate(rename or ()):
    with config_errors(f'init_rename[{index}]={row!r}'):
      rows.append(_row(row))
  return Source(pathlib.Path(path).expanduser(), tuple(rows))


def _row(row: Any) -> tuple[re.Pattern[str], str | None]:
  match row:
    case [str(text), str() | None as replacement]:
      pass
    case _:
      raise ValueError(
        'must be a pair of a regular expression and its replacement, or None'
      )
  try:
    pattern = re.compile(text)
    pattern.sub(replacement or '', '')  # Checks the replacement's groups.
  except (re.error, IndexError) as error:
    raise ValueError(str(error)) from error
  return pattern, replacement


def some(names: Iterable[str]) -> str:
  """Lists a few names, and says how many more there are."""
  every = list(names)
  more = len(every) - _SHOWN
  return ', '.join(every[:_SHOWN]) + (f' and {more} more' if more > 0 else '')
