"""Islands as threads of one process, whose messages stay in memory."""

from collections.abc import Sequence
import threading
from typing import Any

import numpy as np

from selsync_jax.config import RunError
from selsync_jax.islands.peers import Peers, View


class Board:
  """Message exchange between N islands of one process.

  An island that does not answer for `timeout` seconds is an error.
  """

  def __init__(self, size: int, timeout: float = 60.0):
    self.size, self.timeout = size, timeout
    self._messages: dict[tuple[str, int, int, int], np.ndarray] = {}
    self._changed, self._is_closed = threading.Condition(), False

  def peers(self, index: int) -> Peers:
    """Returns the islands, seen from one of them."""
    return _OnBoard(self, index, '')

  def exchange(
    self, channel: str, number: int, index: int, messages: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """Leaves an island's messages of an exchange, and takes its own."""
    with self._changed:
      for to, message in enumerate(messages):
        self._messages[channel, number, index, to] = message
      self._changed.notify_all()
      found = []
      for sender in range(self.size):
        key = channel, number, sender, index
        self._changed.wait_for(
          lambda key=key: self._is_closed or key in self._messages,
          self.timeout,
        )
        if key not in self._messages:
          raise RunError(
            f'island {sender} has not answered for {self.timeout:g} s'
          )
        found.append(self._messages.pop(key))
    return found

  def close(self) -> None:
    """Ends all waits."""
    with self._changed:
      self._is_closed = True
      self._changed.notify_all()


class _OnBoard(Peers):
  """The islands of a board, seen from one of them, on a channel."""

  def __init__(self, board: Board, index: int, channel: str):
    self._index, self._board = index, board
    self._channel, self._count = channel, 0

  @property
  def view(self) -> View:
    names = tuple(map(str, range(self._board.size)))
    return View(names, self._index, names)

  def channel(self, name: str) -> Peers:
    return _OnBoard(self._board, self.index, name)

  def exchange(
    self, messages: Sequence[np.ndarray], about: Any = None
  ) -> list[np.ndarray]:
    del about
    self._count += 1
    return self._board.exchange(
      self._channel, self._count, self.index, messages
    )
