"""Averages that travel behind the steps.

A delayed mean has several steps to arrive. It travels on a channel of its own,
in a thread. The step that needs it waits if it has not arrived: the network's
speed affects a run's time, never its result.
"""

from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import jax
import numpy as np

from selsync_jax.islands.peers import Peers
from selsync_jax.islands.program import cut
from selsync_jax.sync.averagers import UnderWay


class Behind(Peers):
  """Peers between whom delayed means travel in the background.

  Args:
    peers: all islands.
    under_way: the `under_way` of the averager of their steps.
  """

  def __init__(self, peers: Peers, under_way: UnderWay):
    self.names, self.index, self.size = peers.names, peers.index, peers.size
    self._peers, self._background = peers, peers.channel('behind')
    self._message = cut(under_way.message, peers.size)
    self._travel = cut(under_way.travel, peers.size)
    self._thread = futures.ThreadPoolExecutor(1, 'average')
    self._under_way: futures.Future[Any] | None = None

  def channel(self, name: str) -> Peers:
    """Returns another channel to the same islands."""
    return self._peers.channel(name)

  def exchange(self, messages: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Exchanges messages of the steps, on their own channel."""
    return self._peers.exchange(messages)

  def close(self) -> None:
    """Leaves, when all have fetched what this island has sent them."""
    self._thread.shutdown()
    self._peers.close()

  def depart(self, state: Any) -> None:
    """Sends an average on its way, after the step that synchronized.

    Args:
      state: the averager's state after that step.
    """
    message = self._message(self._peers, state)
    self._under_way = self._thread.submit(
      self._travel, self._background, message
    )

  def travel(self, program: Callable[..., Any], *values: Any) -> Any:
    """Waits for the mean that departed; `program` has already run."""
    del program, values
    arrived, self._under_way = self._under_way, None
    assert arrived
    return jax.tree.leaves(arrived.result())
