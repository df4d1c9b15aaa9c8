"""The other islands of a run, and the collectives among all of them.

A transport provides one operation: it sends a message to each island and
receives one from each. All collectives are built from it in NumPy. All islands
get the same bits, because each sum is formed once, or everywhere in the same
order.
"""

import abc
from collections.abc import Callable, Sequence
import functools
from typing import Any

import numpy as np

SMALL = 1 << 14
"""The largest array, in bytes, that an all-reduce sends whole to every island.

That takes one latency and N - 1 messages. Larger arrays take a reduce-scatter
and an all-gather: two latencies, and 2 (N - 1) messages of an N-th each.
"""


class Peers(abc.ABC):
  """All islands, seen from one of them.

  Attributes:
    names: the islands' names, in the order of their indices.
    index: this island's index.
    size: N, the number of islands.
  """

  names: Sequence[str]
  index: int
  size: int

  @abc.abstractmethod
  def channel(self, name: str) -> 'Peers':
    """Returns another channel to the same islands, independent of this."""

  def close(self) -> None:  # noqa: B027
    """Leaves, when all have fetched what this island has sent them."""

  def travel(self, program: Callable[..., Any], *values: Any) -> Any:
    """Returns the delayed mean that `program(self, *values)` computes."""
    return program(self, *values)

  @abc.abstractmethod
  def exchange(self, messages: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Sends `messages[i]` to island i, and returns one message from each.

    Shapes may differ. All islands make the same calls on a channel. Nobody may
    change a message, neither one that was sent nor one that arrived.

    Raises:
      RunError: if an island does not answer.
    """


def _fold(
  op: Callable[[Any, Any], Any], peers: Peers, messages: Sequence[np.ndarray]
) -> np.ndarray:
  """Returns what `op` makes of the messages that arrive, in their order."""
  return np.asarray(
    functools.reduce(op, peers.exchange(messages)), messages[0].dtype
  )


def _reduce(
  op: Callable[[Any, Any], Any], peers: Peers, x: np.ndarray, **_: Any
) -> np.ndarray:
  if x.nbytes <= SMALL:
    return _fold(op, peers, [x] * peers.size)
  part = _fold(op, peers, np.array_split(x.ravel(), peers.size))
  return np.concatenate(peers.exchange([part] * peers.size)).reshape(x.shape)


def _all_gather(
  peers: Peers,
  x: np.ndarray,
  *,
  all_gather_dimension: int,
  tiled: bool,
  **_: Any,
) -> np.ndarray:
  join = np.concatenate if tiled else np.stack
  return join(peers.exchange([x] * peers.size), axis=all_gather_dimension)


def _all_to_all(
  peers: Peers, x: np.ndarray, *, split_axis: int, concat_axis: int, **_: Any
) -> np.ndarray:
  parts = peers.exchange(np.split(x, peers.size, split_axis))
  return np.concatenate(parts, concat_axis)


def _reduce_scatter(
  peers: Peers, x: np.ndarray, *, scatter_dimension: int, tiled: bool, **_: Any
) -> np.ndarray:
  axis = scatter_dimension
  total = _fold(np.add, peers, np.split(x, peers.size, axis))
  return total if tiled else np.squeeze(total, axis)


def _ppermute(
  peers: Peers, x: np.ndarray, *, perm: Sequence[tuple[int, int]], **_: Any
) -> np.ndarray:
  targets, nothing = {to for i, to in perm if i == peers.index}, x.ravel()[:0]
  messages = [x if i in targets else nothing for i in range(peers.size)]
  received = peers.exchange(messages)
  senders = [i for i, to in perm if to == peers.index]
  return received[senders[0]] if senders else np.zeros_like(x)


COLLECTIVES: dict[str, Callable[..., np.ndarray]] = {
  'psum': functools.partial(_reduce, np.add),
  'pmax': functools.partial(_reduce, np.maximum),
  'pmin': functools.partial(_reduce, np.minimum),
  'all_gather': _all_gather,
  'all_to_all': _all_to_all,
  'reduce_scatter': _reduce_scatter,
  'ppermute': _ppermute,
}
"""By the name of JAX's primitive: `collective(peers, x, **its parameters)`."""
