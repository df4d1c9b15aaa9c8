"""A file with everything that leaves an island: evidence of its messages.

One line has the names of the arrays that averages are made of. Every other line
has a message, or a piece of one. For another island, it is written before these
bytes are sent, so the file never says too little; if it cannot be written, the
island ends. Messages without an array, such as signs of life, are not in it.
"""

from collections.abc import Mapping
import hashlib
import json
import os
import pathlib
import threading
import time
from typing import Any

from selsync_jax.cluster.protocol.messages import Array, Place
from selsync_jax.config import ConfigError, RunError


class Audit:
  """Appends lines of JSON to a file; without a file, does nothing.

  Islands on one host may share the file.

  Args:
    path: the file.
    island: name of this island.

  Raises:
    ConfigError: if the file cannot be opened.
  """

  def __init__(self, path: pathlib.Path | None, island: str):
    self._island = island
    self._path, self._writing = path, threading.Lock()
    if path:
      flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
      try:
        os.close(os.open(path, flags, 0o600))
      except OSError as error:
        raise ConfigError(f'audit={path}: {error.strerror}') from error

  def names(self, arrays: Mapping[str, Any]) -> None:
    """Adds a line with the names and types of arrays."""
    types = {
      name: str(Array(str(x.dtype), x.shape)) for name, x in arrays.items()
    }
    self._add(arrays=types)

  def sends(self, to: str, place: Place, content: Any, start: int = 0) -> None:
    """Adds a line about bytes that leave now.

    Args:
      to: the island that they are for, or `coordinator`.
      place: where the islands exchange the message; `dtype` and `shape` are of
        the island's array, of which a message may be a part.
      content: the bytes.
      start: their offset in the message.

    Raises:
      RunError: if the line cannot be written.
    """
    if self._path:
      self._add(
        to=to,
        step=(place.step or 0) + 1,
        operation=place.operation,
        dtype=place.dtype,
        shape=place.shape,
        start=start,
        bytes=memoryview(content).nbytes,
        sha256=hashlib.sha256(content).hexdigest(),
      )

  def _add(self, **row: Any) -> None:
    if self._path:
      about = {'time': time.time(), 'island': self._island}
      try:
        with self._writing, self._path.open('a') as file:
          file.write(f'{json.dumps({**about, **row})}\n')
      except OSError as error:
        raise RunError(f'audit={self._path}: {error.strerror}') from error
