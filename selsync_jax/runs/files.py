"""Files that are written whole, and JSON that is read with suspicion.

A file is replaced in one step, so a crash or a power loss leaves the old one or
the new one. What a disk does to it later is found when it is read: every reader
says which types it needs, and anything else is one line that names the file.
"""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
from typing import Any

import msgspec

from selsync_jax.config import RunError


class DamagedFile(RunError):
  """A file of a run does not hold what it should; names file and reason."""

  def __init__(self, path: pathlib.Path, reason: str):
    super().__init__(f'{path} is damaged: {reason}')


def write(path: pathlib.Path, text: str) -> None:
  """Writes a file completely, or leaves the one that is there."""
  with replaced(path) as temporary:
    temporary.write_text(text, encoding='utf-8')


@contextlib.contextmanager
def replaced(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields where to write a file that then takes the place of `path`.

  If an error is raised meanwhile, `path` stays as it is. An `OSError` names it.
  """
  temporary = path.with_name(f'{path.name}.tmp')
  try:
    yield temporary
    _sync(temporary)
  except BaseException as error:
    temporary.unlink(missing_ok=True)
    if isinstance(error, OSError):
      error.filename = str(path)
    raise
  temporary.replace(path)
  _sync(path.parent)  # Holds the new name.


def _sync(path: pathlib.Path) -> None:
  """Makes a file, or the names in a folder, survive a power loss."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def read_bytes(path: pathlib.Path) -> bytes | None:
  """The content of a file, or `None` if there is no such file.

  Raises:
    DamagedFile: if it cannot be read.
  """
  try:
    return path.read_bytes()
  except (FileNotFoundError, NotADirectoryError):
    return None
  except OSError as error:
    raise DamagedFile(path, str(error.strerror)) from error


def read(path: pathlib.Path, *kinds: Any) -> Any:
  """The value in a JSON file, or `None` if there is no such file.

  Args:
    path: the file.
    kinds: types that the value must have, all of them; see `parse`.

  Raises:
    DamagedFile: if it cannot be read, is not JSON or is no such value.
  """
  content = read_bytes(path)
  if content is None:
    return None
  try:
    return parse(content, *kinds)
  except ValueError as error:
    raise DamagedFile(path, str(error)) from error


def parse(content: bytes, *kinds: Any) -> Any:
  """The value of a JSON text, NaN and infinities included.

  Args:
    content: the text.
    kinds: types that the value must have, all of them: a `TypedDict` says which
      fields an object has at least, `dict[str, T]` what all its fields are.
      A bool is no number.

  Raises:
    ValueError: if it is not JSON, or no such value.
  """
  try:
    value = json.loads(content.decode())
  except RecursionError as error:
    raise ValueError('nested too deep') from error
  except UnicodeDecodeError as error:
    raise ValueError(f'not UTF-8 at byte {error.start}') from error
  except ValueError as error:
    raise ValueError(f'not JSON: {error}' if content else 'empty') from error
  for kind in kinds:
    msgspec.convert(value, kind)
  return value


def unused(path: pathlib.Path) -> pathlib.Path:
  """The path, or else `PATH.1`, `PATH.2` and so on, that does not exist."""
  index, free = 0, path
  while free.exists():
    index += 1
    free = path.with_name(f'{path.name}.{index}')
  return free
