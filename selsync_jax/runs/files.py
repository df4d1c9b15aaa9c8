"""Files that are written whole, and JSON that is read with suspicion.

A file is replaced in one step, so a crash or a power loss leaves the old one or
the new one. What a disk does to it later is found when it is read: every reader
says which shape it needs, and anything else is one line that names the file.
"""

from collections.abc import Iterator, Mapping
import contextlib
import json
import os
import pathlib
from typing import Any

from selsync_jax.config import RunError

Shape = type | tuple | list | Mapping
"""What a value must be: of a type; one of several shapes, `(shape, shape)`; a
list, `[shape]`; an object with these fields, `{name: shape}`, where the shape
at `...` is that of all other fields."""

NUMBER = (int, float)
NUMBER_OR_NULL = (*NUMBER, type(None))


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


def read(path: pathlib.Path, shape: Shape) -> Any:
  """The value in a JSON file, or `None` if there is no such file.

  Raises:
    DamagedFile: if it cannot be read, is not JSON or has another shape.
  """
  content = read_bytes(path)
  if content is None:
    return None
  try:
    return parse(content, shape)
  except ValueError as error:
    raise DamagedFile(path, str(error)) from error


def parse(content: bytes, shape: Shape) -> Any:
  """The value of a JSON text.

  Raises:
    ValueError: if it is not JSON, or has another shape.
  """
  try:
    value = json.loads(content.decode())
  except RecursionError as error:
    raise ValueError('nested too deep') from error
  except UnicodeDecodeError as error:
    raise ValueError(f'not UTF-8 at byte {error.start}') from error
  except ValueError as error:
    raise ValueError(f'not JSON: {error}' if content else 'empty') from error
  if wrong := _mismatch(value, shape):
    raise ValueError(wrong)
  return value


def _mismatch(value: Any, shape: Shape, name: str = 'the content') -> str:
  """The first difference between a value and a shape; empty if none."""
  kinds = shape if isinstance(shape, tuple) else (shape,)
  if type(value) in kinds:
    return ''  # Nearly always, and a long run has millions of values.
  wrong = f'{name} is missing' if value is ... else f'{name} has a wrong type'
  if isinstance(shape, tuple):
    return '' if not all(_mismatch(value, s) for s in shape) else wrong
  if isinstance(shape, type):
    allows_bool = shape in (bool, object)
    fits = isinstance(value, shape) and isinstance(value, bool) <= allows_bool
    return '' if fits else wrong
  if isinstance(shape, list) and isinstance(value, list):
    parts = [(item, shape[0], name) for item in value]
  elif isinstance(shape, Mapping) and isinstance(value, dict):
    others = shape.get(..., object)
    names = dict.fromkeys([*shape, *value])
    names.pop(..., None)
    parts = [(value.get(k, ...), shape.get(k, others), k) for k in names]
  else:
    return wrong
  return next(filter(None, (_mismatch(*part) for part in parts)), '')


def unused(path: pathlib.Path) -> pathlib.Path:
  """The path, or else `PATH.1`, `PATH.2` and so on, that does not exist."""
  index, free = 0, path
  while free.exists():
    index += 1
    free = path.with_name(f'{path.name}.{index}')
  return free
