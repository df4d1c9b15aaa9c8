"""Files with a line of JSON for each logged step, which only grow.

A crash may tear the last line, and a disk may damage any. Lines are therefore
read one by one, and a checkpoint remembers a seal of those before it.
"""

from collections.abc import Callable
import contextlib
import os
import pathlib
import sys
from typing import Any, NamedTuple
import zlib

from selsync_jax.runs import files

_TAIL = 2**16  # Bytes; many lines.

Row = dict[str, Any]


class Seal(NamedTuple):
  """What a checkpoint remembers of a file.

  Attributes:
    rows: number of lines.
    crc32: of all of them.
  """

  rows: int
  crc32: int


EMPTY = Seal(0, zlib.crc32(b''))


class _Line(NamedTuple):
  text: bytes
  row: Row


class StepLines:
  """A file with a line for each logged step, for reading.

  Args:
    path: of the file; a missing one has no lines.
    parse: from a line to its row, which has a `step`. A line for which it
      raises ValueError is damaged.
  """

  def __init__(self, path: pathlib.Path, parse: Callable[[bytes], Row]):
    self.path, self._parse = path, parse

  def read(self) -> tuple[dict[int, Row], int]:
    """The intact rows by step, ascending, and the number of damaged lines.

    A last line torn by a crash is neither.
    """
    intact, damaged = self._lines()
    return {step: intact[step].row for step in sorted(intact)}, damaged

  def last(self) -> Row | None:
    """The newest intact row, without reading all of the file."""
    with contextlib.suppress(OSError), self.path.open('rb') as file:
      file.seek(-min(file.seek(0, os.SEEK_END), _TAIL), os.SEEK_END)
      for line in reversed(file.read().split(b'\n')[:-1]):
        with contextlib.suppress(ValueError):
          return self._parse(line)
    return None

  def kept(self, step: int) -> tuple[bytes, Seal]:
    """The intact lines up to a step, and their seal."""
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
    """What is wrong with the lines up to a step, and what follows."""
    lost = expected.rows - found.rows
    rows = f'rows up to step {step}'
    if lost <= 0:
      return f'{self.path}: {rows} were changed after they were written'
    return (
      f'{self.path}: {lost} of {expected.rows} {rows} are lost; '
      'nothing else is affected'
    )


class Appender:
  """Adds lines to a file, after those of the run so far.

  Args:
    lines: the file.
    step: the last step whose line is kept; later steps will be taken, and
      written, again.
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
    """Makes the lines so far survive a power loss, and describes them."""
    os.fsync(self._file.fileno())
    return self._seal
