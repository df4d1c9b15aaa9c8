"""Append-only files with a line of JSON for each logged step.

A crash may cut off the last line, and a disk may damage any. Each line is
therefore parsed alone, and a checkpoint stores a seal of the lines before it.
"""

from collections.abc import Callable
import contextlib
import os
import pathlib
import sys
from typing import Any, NamedTuple
import zlib

from selsync_jax.runs import files

_TAIL = 2**16  # Bytes.

Row = dict[str, Any]


class Seal(NamedTuple):
  """A description of a file, to detect lost and changed lines.

  Attributes:
    rows: the number of lines.
    crc32: the checksum of all of them.
  """

  rows: int
  crc32: int


EMPTY = Seal(0, zlib.crc32(b''))


class _Line(NamedTuple):
  text: bytes
  row: Row


class StepLines:
  """A readable file with a line for each logged step.

  Args:
    path: the file's path; a missing file has no lines.
    parse: a function from a line to its row, which has a `step`; it raises
      `ValueError` for a damaged line.
  """

  def __init__(self, path: pathlib.Path, parse: Callable[[bytes], Row]):
    self.path, self._parse = path, parse

  def read(self) -> tuple[dict[int, Row], int]:
    """Returns the intact rows by ascending step, and how many are damaged.

    A last line that a crash cut off is neither.
    """
    intact, damaged = self._lines()
    return {step: intact[step].row for step in sorted(intact)}, damaged

  def last(self) -> Row | None:
    """Returns the newest intact row; reads only the end of the file."""
    with contextlib.suppress(OSError), self.path.open('rb') as file:
      file.seek(-min(file.seek(0, os.SEEK_END), _TAIL), os.SEEK_END)
      for line in reversed(file.read().split(b'\n')[:-1]):
        with contextlib.suppress(ValueError):
          return self._parse(line)
    return None

  def kept(self, step: int) -> tuple[bytes, Seal]:
    """Returns the intact lines up to a step, and their seal."""
    intact, _ = self._lines()
    lines = [intact[s].text for s in sorted(intact) if s <= step]
    text = b''.join(lines)
    return text, Seal(len(lines), zlib.crc32(text))

  def check(self, step: int, seal: Seal) -> None:
    """Reports lines up to a step that are lost or changed."""
    _, found = self.kept(step)
    if seal != found:
      print(self._difference(seal, found, step), file=sys.stderr)

  def _lines(self) -> tuple[dict[int, _Line], int]:
    *lines, _ = (files.read_bytes(self.path) or b'').split(b'\n')
    intact: dict[int, _Line] = {}
    for line in lines:
      with contextlib.suppress(ValueError):
        row = self._parse(line)
        intact.setdefault(row['step'], _Line(line + b'\n', row))
    return intact, len(lines) - len(intact)

  def _difference(self, expected: Seal, found: Seal, step: int) -> str:
    lost = expected.rows - found.rows
    rows = f'rows up to step {step}'
    if lost <= 0:
      return f'{self.path}: {rows} were changed after they were written'
    return (
      f'{self.path}: {lost} of {expected.rows} {rows} are lost; '
      'nothing else is affected'
    )


class Appender:
  """An open file, for appending lines.

  Args:
    lines: the file.
    step: the last step whose line is kept; later ones will be written again.
  """

  def __init__(self, lines: StepLines, step: int):
    text, self._seal = lines.kept(step)
    files.write(lines.path, text.decode())
    self._file = lines.path.open('ab')

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def append(self, text: str) -> None:
    """Adds a line."""
    line = f'{text}\n'.encode()
    self._file.write(line)
    self._file.flush()
    self._seal = Seal(self._seal.rows + 1, zlib.crc32(line, self._seal.crc32))

  def seal(self) -> Seal:
    """Flushes the lines to disk and returns their seal."""
    os.fsync(self._file.fileno())
    return self._seal
