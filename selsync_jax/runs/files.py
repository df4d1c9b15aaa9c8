"""Atomic writes of files, and checked reads of JSON.

A file is replaced in one step, so a crash or a power loss leaves the old file
or the new one. Later damage is detected by the types that every reader asks
for, and reported in one line that names the file.
"""

from collections.abc import Callable, Generator, Mapping
import contextlib
import json
import os
import pathlib
from typing import Any
import zipfile

import msgspec

from selsync_jax.config import flat, RunError

File = pathlib.Path | zipfile.Path


class DamagedFile(RunError):
  """An error about a run's file with unexpected content."""

  def __init__(self, path: File, reason: str):
    super().__init__(f'{path} is damaged: {reason}')


def write(path: pathlib.Path, text: str) -> None:
  """Writes a file atomically."""
  with replaced(path) as temporary:
    temporary.write_text(text, encoding='utf-8')


def write_json(path: pathlib.Path, value: Any, **options: Any) -> None:
  """Writes a value as indented JSON, atomically; options are `json.dumps`'s."""
  write(path, json.dumps(value, indent=2, **options) + '\n')


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Generator[None]:
  """Makes an `OSError` that is raised in the context name a file."""
  try:
    yield
  except OSError as error:
    error.filename = str(path)
    raise


@contextlib.contextmanager
def replaced(path: pathlib.Path) -> Generator[pathlib.Path]:
  """Yields a temporary path; the file written there then replaces `path`.

  If an error is raised, `path` stays as it is. An `OSError` names `path`.
  """
  # No user would choose this name; after a kill, the next write replaces it.
  temporary = path.with_name(f'.{path.name}.selsync.tmp')
  try:
    with naming(path):
      yield temporary
      _sync(temporary)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise
  temporary.replace(path)
  _sync(path.parent)  # Holds the new name.


def _sync(path: pathlib.Path) -> None:
  """Flushes a file, or the names in a folder, to disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def read_bytes(path: File) -> bytes | None:
  """Returns the content of a file, or `None` if there is no such file."""
  try:
    if not path.is_file() and path.exists():  # A FIFO would never end.
      raise DamagedFile(path, 'it is not a regular file')
    return path.read_bytes()
  except (FileNotFoundError, NotADirectoryError):
    return None
  except OSError as error:  # Not damage; another attempt may succeed.
    raise RunError(f'{path} cannot be read: {error.strerror}') from error


def read(path: File, *kinds: Any) -> Any:
  """Returns the value in a JSON file, or `None` if there is no such file.

  It raises `DamagedFile` for an error of `parse`, and another `RunError` if
  the file cannot be read.
  """
  content = read_bytes(path)
  if content is None:
    return None
  try:
    return parse(content, *kinds)
  except ValueError as error:
    raise DamagedFile(path, str(error)) from error


def parse(content: bytes, *kinds: Any) -> Any:
  """Returns the value of a JSON text, which may hold NaN and infinities.

  It raises `ValueError` for other text, or a value that does not match all
  `kinds`: a `TypedDict` names required fields, `dict[str, T]` gives the type of
  all fields. A bool is not a number.
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


def differences(
  old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
  """Returns the fields in which old and new values differ, as JSON has them.

  Each is a dotted name, an old value and a new value, `None` for a missing
  field. They are sorted by name.
  """
  before, now = (flat(json.loads(json.dumps(each))) for each in (old, new))
  names = sorted(before.keys() | now.keys())
  pairs = ((name, before.get(name), now.get(name)) for name in names)
  return [(name, was, value) for name, was, value in pairs if was != value]


def remembered(path: pathlib.Path, create: Callable[[], str]) -> str:
  """Returns the ID in a file; creates the file if it is missing."""
  if content := read_bytes(path):
    return content.decode().strip()
  created = create()
  write(path, f'{created}\n')
  return created


def move_aside(path: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
  """Renames a path to the first of `TO`, `TO.1`, ... that is unused."""
  index, free = 0, to
  while free.exists():
    index += 1
    free = to.with_name(f'{to.name}.{index}')
  return path.rename(free)
