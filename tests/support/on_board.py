"""Islands as threads of one process."""

from collections.abc import Sequence
from concurrent import futures
import functools
import threading

import jax
import numpy as np

from selsync_jax.config import RunError
from selsync_jax.islands.peers import Peers


class Board:
  """A place where islands of one process leave their messages.

  Args:
    size: N, the number of islands.
    timeout: seconds until an island that does not answer is an error.
  """

  def __init__(self, size: int, timeout: float = 60.0):
    self.size, self.timeout = size, timeout
    self._messages: dict[tuple[str, int, int, int], np.ndarray] = {}
    self._changed = threading.Condition()

  def peers(self, index: int) -> Peers:
    """Returns the islands as one of them sees them."""
    return _OnBoard(self, index, '')

  def exchange(
    self, channel: str, number: int, index: int, messages: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """Leaves an island's messages of an exchange, and takes those for it."""
    with self._changed:
      for to, message in enumerate(messages):
        self._messages[channel, number, index, to] = message
      self._changed.notify_all()
      found = []
      for sender in range(self.size):
        key = channel, number, sender, index
        there = functools.partial(self._messages.__contains__, key)
        if not self._changed.wait_for(there, self.timeout):
          raise RunError(
            f'island {sender} has not answered for {self.timeout:g} s'
          )
        found.append(self._messages.pop(key))
    return found


class _OnBoard(Peers):
  def __init__(self, board: Board, index: int, channel: str):
    self._index, self._board = index, board
    self._channel, self._count = channel, 0

  @property
  def names(self) -> Sequence[str]:
    return tuple(map(str, range(self._board.size)))

  @property
  def index(self) -> int:
    return self._index

  def channel(self, name: str) -> Peers:
    return _OnBoard(self._board, self.index, name)

  def stops_after(self, step: int) -> bool:
    return False

  def exchange(self, messages: Sequence[np.ndarray]) -> list[np.ndarray]:
    self._count += 1
    return self._board.exchange(
      self._channel, self._count, self.index, messages
    )


def on_board(run, islands, *stacked):
  """What `run(peers, *args)` returns on each island, stacked.

  Args:
    run: a function that `cut` has made, or one that calls it.
    islands: N, their number.
    *stacked: the arguments of all islands, [N, ...].
  """
  board = Board(islands)

  def island(i):
    args = jax.tree.map(lambda x: x[i], stacked)
    return jax.device_get(run(board.peers(i), *args))

  with futures.ThreadPoolExecutor(islands) as pool:
    results = list(pool.map(island, range(islands)))
  return jax.tree.map(lambda *x: np.stack(x), *results)
