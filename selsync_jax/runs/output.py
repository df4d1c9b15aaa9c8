"""Standard output that never fails, so that it cannot end a run.

Output that cannot be written, to a pipe without a reader, a full disk or a
closed terminal, is dropped, with one note in the run's folder.
"""

import contextlib
import datetime
import io
import os
import pathlib
import select
import sys
from typing import Any, TextIO

NOTE = 'output-lost.txt'
_NAMES = {1: 'stdout', 2: 'stderr'}


class _Descriptor(io.RawIOBase):
  """A file descriptor, 1 or 2, to which writing never fails."""

  def __init__(self, descriptor: int):
    self._descriptor, self._has_lost = descriptor, False

  def writable(self) -> bool:
    return True

  def fileno(self) -> int:
    return self._descriptor

  def isatty(self) -> bool:
    return os.isatty(self._descriptor)

  def write(self, data: Any, /) -> int:
    """Writes bytes, or drops them; returns how many."""
    while True:
      try:
        return os.write(self._descriptor, data)
      except BlockingIOError:  # Another program made the terminal non-blocking.
        select.select([], [self._descriptor], [])
      except OSError as error:
        if not self._has_lost:
          self._has_lost = True
          now = datetime.datetime.now().isoformat(timespec='seconds')
          place = f'process {os.getpid()}, {_NAMES[self._descriptor]}'
          reason = f'{error.strerror}; what could not be written was dropped'
          note_losses(line=f'{now} {place}: {reason}\n')
        return len(data)


_folders: list[pathlib.Path] = []  # The run's folder, once it is known.
_notes: list[str] = []  # Lines that no folder has yet.


def own() -> None:
  """Replaces stdout and stderr, so that printing never fails."""
  for descriptor in (0, 1, 2):
    # A file that is opened later would take the number of a closed one.
    try:
      os.fstat(descriptor)
    except OSError:
      os.open(os.devnull, os.O_RDWR)
  sys.stdout = _stream(1, sys.stdout)
  sys.stderr = _stream(2, sys.stderr)


def note_losses(folder: pathlib.Path | None = None, line: str = '') -> None:
  """Sets the folder for notes about lost output, or without one adds a note."""
  if folder:
    _folders[:] = [folder]
  if line:
    _notes.append(line)
  if _folders and _notes:
    with (
      contextlib.suppress(OSError),
      (_folders[0] / NOTE).open('a', encoding='utf-8') as file,
    ):
      file.write(''.join(_notes))
    _notes.clear()


def _stream(descriptor: int, before: TextIO | None) -> io.TextIOWrapper:
  return io.TextIOWrapper(
    io.BufferedWriter(_Descriptor(descriptor)),
    encoding=getattr(before, 'encoding', 'utf-8'),
    errors='replace',  # Characters that the encoding lacks.
    # Keeps the order of stdout and stderr.
    line_buffering=True,
  )
