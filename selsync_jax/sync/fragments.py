"""An averager of a part of the parameters at a time.

A synchronization of one k-th of the parameters costs one k-th of the bytes, so
there can be k times as many, and the network never carries a whole model.

References (with titles in `selsync_jax.methods.table`):
  Douillard et al., 2025, section 2.2 (`in_turn`: Streaming DiLoCo, whose
    fragments are groups of layers).
  Beton et al., MCDC workshop at ICLR 2025 (`random`: SPARTA).
"""

from typing import Any, Literal, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Int32, Shaped

from selsync_jax.config import Count
from selsync_jax.sync import resizing
from selsync_jax.sync.averagers import (
  Averager,
  check_inside,
  MEAN,
  Piece,
  WHOLE,
)
from selsync_jax.sync.part import part


class FragmentsState(NamedTuple):
  """State of `fragments`, equal on all workers except the averager's error.

  For `in_turn`, `averager` has the states of all fragments, each leaf [k, ...].
  """

  rounds: Int32[Array, '']
  averager: Any


@part
def fragments(
  k: Count,
  how: Literal['in_turn', 'random'] = 'in_turn',
  averager: Averager = MEAN,
  seed: int = 0,
) -> Averager:
  """Averages one k-th of every array.

  Every array is cut into k slices of equal size. So a fragment is a tree like
  the whole tree, and all fragments have the same size for any layers.

  Args:
    k: the number of fragments, at least 1.
    how: `in_turn`: each synchronization averages the next slice. `random`: each
      position takes its element from a randomly drawn slice, the same on all
      workers; so an element is averaged with probability 1/k.
    averager: the averager of a fragment. With `in_turn` each fragment has its
      own state, for example of an outer optimizer or a wire's error memory.
    seed: the seed of the random draws.

  Raises:
    ValueError: if `how` is `random` and the averager remembers its last tree,
      or if the averager is delayed, averages nothing, or a piece at a time.
  """
  check_inside(averager)
  if averager.piece is not WHOLE:
    raise ValueError(
      f'fragments averages a piece at a time, and so does averager {averager}; '
      'use a larger k instead'
    )
  init, chosen, own, keep = HOW[how](k, averager, seed)

  def take(tree, state):
    return chosen.take(_cut(tree, k), state)

  def put(tree, piece, state):
    slices = chosen.put(_cut(tree, k), piece, state)
    return jax.tree.map(_joined, slices, tree)

  def apply(piece, state):
    piece, new = averager.apply(piece, own(state))
    return piece, keep(state, new)._replace(rounds=state.rounds + 1)

  def metrics(state):  # Metrics of the last averaged fragment.
    return averager.metrics(own(state._replace(rounds=state.rounds - 1)))

  return Averager(
    lambda tree: FragmentsState(jnp.int32(0), init(tree)),
    apply,
    piece=Piece(take, put),
    agrees=False,
    remembers=averager.remembers,
    check=averager.check,
    metrics=metrics,
    resize=resizing.fields(rounds=resizing.first, averager=averager.resize),
  )


def _slices(leaf: Any, k: int) -> Shaped[Array, 'k width']:
  """Cuts an array into k slices, padded with zeros at the end."""
  leaf = jnp.ravel(leaf)
  width = -(-leaf.size // k)
  return jnp.pad(leaf, (0, k * width - leaf.size)).reshape(k, width)


def _cut(tree: Any, k: int) -> Any:
  return jax.tree.map(lambda leaf: _slices(leaf, k), tree)


def _joined(slices: Shaped[Array, 'k width'], like: Any) -> Any:
  """Joins slices to an array with the shape of `like`."""
  size, shape = jnp.size(like), jnp.shape(like)
  return slices.reshape(-1)[:size].reshape(shape)


def _in_turn(k: int, averager: Averager, seed: int) -> Any:
  """Returns four functions that choose the next slice.

  The first initializes the averager's state for a tree. A `Piece` takes and
  puts the slice. The last two read and replace the averager's state in the
  state of `fragments`.
  """
  index_in = lax.dynamic_index_in_dim
  put_in = lax.dynamic_update_index_in_dim

  def take(stacked, state):
    index = state.rounds % k
    return jax.tree.map(lambda x: index_in(x, index, keepdims=False), stacked)

  def put(stacked, one, state):
    index = state.rounds % k
    return jax.tree.map(lambda x, y: put_in(x, y, index, 0), stacked, one)

  return (
    lambda tree: jax.vmap(averager.init)(_cut(tree, k)),
    Piece(take, put),
    lambda state: take(state.averager, state),
    lambda state, new: state._replace(averager=put(state.averager, new, state)),
  )


def _random(k: int, averager: Averager, seed: int) -> Any:
  """Like `_in_turn`, but draws the elements at random."""
  if averager.remembers:
    raise ValueError(
      'random fragments are different elements each time, and averager '
      f'{averager} remembers its last average'
    )

  def take(slices, state):
    rows = _draws(state.rounds, slices, k, seed)
    return jax.tree.map(
      lambda s, row: jnp.take_along_axis(s, row[None], 0)[0], slices, rows
    )

  def put(slices, piece, state):
    rows = _draws(state.rounds, slices, k, seed)
    drawn = jax.tree.map(lambda row: jnp.arange(k)[:, None] == row[None], rows)
    return jax.tree.map(
      lambda old, here, new: jnp.where(here, new[None], old),
      *(slices, drawn, piece),
    )

  return (
    averager.init,
    Piece(take, put),
    lambda state: state.averager,
    lambda state, new: state._replace(averager=new),
  )


def _draws(rounds: Any, slices: Any, k: int, seed: int) -> Any:
  """Draws a slice for each position of every leaf [k, width]: int32 [width]."""
  key = jax.random.fold_in(jax.random.key(seed), rounds)
  leaves, treedef = jax.tree.flatten(slices)
  return treedef.unflatten(
    jax.random.randint(jax.random.fold_in(key, i), leaf.shape[1:], 0, k)
    for i, leaf in enumerate(leaves)
  )


HOW = {'in_turn': _in_turn, 'random': _random}
