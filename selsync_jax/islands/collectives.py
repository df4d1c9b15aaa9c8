"""Collectives among islands, in NumPy.

All workers get the same bits, because each sum is formed only once, or
everywhere in the same order.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any

import numpy as np

from selsync_jax.cluster.protocol.messages import FOLDS
from selsync_jax.islands.peers import About, folded, is_small, Peers


def _reduce(name: str, peers: Peers, x: np.ndarray, **_: Any) -> np.ndarray:
  if is_small(x):
    return peers.fold(name, x)
  parts = np.array_split(x.ravel(), peers.size)
  own = [parts[peers.index]] * peers.size
  part = folded(FOLDS[name], peers.exchange(parts, About(name, x, own)))
  whole = peers.exchange([part] * peers.size, About(name, x, parts))
  return np.concatenate(whole).reshape(x.shape)


def _all_gather(
  peers: Peers,
  x: np.ndarray,
  *,
  all_gather_dimension: int,
  tiled: bool,
  **_: Any,
) -> np.ndarray:
  join = np.concatenate if tiled else np.stack
  return join(peers.gather(x), axis=all_gather_dimension)


def _exchanged(
  name: str, peers: Peers, x: np.ndarray, axis: int
) -> list[np.ndarray]:
  """Sends each island its part of an array."""
  parts = np.split(x, peers.size, axis)
  own = [parts[peers.index]] * peers.size
  return peers.exchange(parts, About(name, x, own))


def _all_to_all(
  peers: Peers, x: np.ndarray, *, split_axis: int, concat_axis: int, **_: Any
) -> np.ndarray:
  parts = _exchanged('all_to_all', peers, x, split_axis)
  return np.concatenate(parts, concat_axis)


def _reduce_scatter(
  peers: Peers, x: np.ndarray, *, scatter_dimension: int, tiled: bool, **_: Any
) -> np.ndarray:
  axis = scatter_dimension
  parts = _exchanged('reduce_scatter', peers, x, axis)
  total = folded(np.add, parts)
  return total if tiled else np.squeeze(total, axis)


def _ppermute(
  peers: Peers, x: np.ndarray, *, perm: Sequence[tuple[int, int]], **_: Any
) -> np.ndarray:
  targets, nothing = {to for i, to in perm if i == peers.index}, x.ravel()[:0]
  messages = [x if i in targets else nothing for i in range(peers.size)]
  senders = [i for i, to in perm if to == peers.index]
  like = [x if i in senders else nothing for i in range(peers.size)]
  received = peers.exchange(messages, About('ppermute', x, like))
  return received[senders[0]] if senders else np.zeros_like(x)


COLLECTIVES: dict[str, Callable[..., np.ndarray]] = {
  'psum': functools.partial(_reduce, 'psum'),
  'pmax': functools.partial(_reduce, 'pmax'),
  'pmin': functools.partial(_reduce, 'pmin'),
  'all_gather': _all_gather,
  'all_to_all': _all_to_all,
  'reduce_scatter': _reduce_scatter,
  'ppermute': _ppermute,
}
"""Collectives by the name of JAX's primitive: `f(peers, x, **parameters)`."""
