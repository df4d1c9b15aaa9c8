"""The part of a Markdown page that a command writes, between two comments.

`python -m benchmarks.marked NAME.md PAGE` inserts a file as the page's part of
this name.
"""

import pathlib
import re
import sys

from selsync_jax.config import ConfigError
from selsync_jax.runs import files


def check(page: pathlib.Path, name: str) -> None:
  """Raises `ConfigError` unless `insert` can write this part of a page."""
  _read(page, name)


def insert(text: str, page: pathlib.Path, name: str) -> None:
  """Replaces the text between `<!-- name ... -->` and `<!-- /name -->`.

  Args:
    text: the lines that take its place.
    page: a file in UTF-8.
    name: the name of the part; the rest of the first comment stays.

  Raises:
    ConfigError: if the page cannot be written, or lacks the part.
  """
  new = _part(name).sub(lambda m: m[1] + text + m[2], _read(page, name))
  files.write(page.resolve(), new)  # A link to the file stays a link.


def _read(page: pathlib.Path, name: str) -> str:
  """Returns the text of a writable page that has the part once."""
  try:
    with page.open('r+', encoding='utf-8') as file:
      text = file.read()
  except OSError as error:
    raise ConfigError(f'{page}: {error.strerror}') from error
  except UnicodeDecodeError as error:
    raise ConfigError(f'{page}: must be UTF-8') from error
  if len(_part(name).findall(text)) != 1:
    raise ConfigError(
      f'{page}: must hold <!-- {name} --> and <!-- /{name} --> once'
    )
  return text


def _part(name: str) -> re.Pattern[str]:
  return re.compile(rf'(<!-- {name}\b.*?-->\n).*?(<!-- /{name} -->)', re.S)


if __name__ == '__main__':
  text, page = map(pathlib.Path, sys.argv[1:])
  try:
    insert(text.read_text(encoding='utf-8'), page, text.stem)
  except ConfigError as error:
    sys.exit(f'{error}')
