"""Standard output that never fails, so that it cannot end a run.

Output that cannot be written, to a pipe without a reader, a full disk or a
closed terminal, is dropped.
"""

import io
import os
import select
import sys
from typing import Any, TextIO


class _Descriptor(io.RawIOBase):
  """A file descriptor, 1 or 2, to which writing never fails."""

  def __init__(self, descriptor: int):
    self._descriptor = descriptor

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
      except OSError:
        return len(data)


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


def _stream(descriptor: int, before: TextIO | None) -> io.TextIOWrapper:
  return io.TextIOWrapper(
    io.BufferedWriter(_Descriptor(descriptor)),
    encoding=getattr(before, 'encoding', 'utf-8'),
    errors='replace',  # Characters that the encoding lacks.
    # Keeps the order of stdout and stderr.
    line_buffering=True,
  )
