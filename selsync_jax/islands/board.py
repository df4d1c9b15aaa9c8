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
    # By channel, index of the exchange, sender and receiver.
    self.messages: dict[tuple[str, int, int, int], np.ndarray] = {}
    self.changed, self.is_closed = threading.Condition(), False

  def peers(self, index: int) -> Peers:
    """Returns the islands, seen from one of them."""
    return _OnBoard(self, index, '')

  def close(self) -> None:
    """Ends all waits."""
    with self.changed:
      self.is_closed = True
      self.changed.notify_all()


class _OnBoard(Peers):
  """The islands of a board, seen from one of them, on a channel."""

  view = View((), 0, ())

  def __init__(self, board: Board, index: int, channel: str):
    names = tuple(map(str, range(board.size)))
    self.view = View(names, index, names)
    self._board, self._channel, self._count = board, channel, 0

  def channel(self, name: str) -> Peers:
    return _OnBoard(self._board, self.index, name)

  def exchange(
    self, messages: Sequence[np.ndarray], about: Any = None
  ) -> list[np.ndarray]:
    del about
    board, found = self._board, []
    self._count += 1
    exchange = self._channel, self._count
    with board.changed:
      for to, message in enumerate(messages):
        board.messages[*exchange, self.index, to] = message
      board.changed.notify_all()
      for sender in range(board.size):
        key = *exchange, sender, self.index
        board.changed.wait_for(
          lambda key=key: board.is_closed or key in board.messages,
          board.timeout,
        )
        if key not in board.messages:
          raise RunError(
            f'island {sender} has not answered for {board.timeout:g} s'
          )
        found.append(board.messages.pop(key))
    return found
