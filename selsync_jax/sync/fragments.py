"""An averager of a part of the parameters at a time.

A synchronization of one k-th of the parameters costs one k-th of the bytes, so
there can be k times as many, and the network never carries a whole model.

References (with titles in `selsync_jax.methods.periodic`):
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
from selsync_jax.sync.averagers import Averager
from selsync_jax.sync.averagers import MEAN
from selsync_jax.sync.part import part
from selsync_jax.sync.part import shown


class FragmentsState(NamedTuple):
  """State of `fragments`, equal on all workers but for the averager's error.

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

  Every array is cut into k slices of equal size, so a fragment is a tree like
  the whole one, and all fragments are equally large, whatever the layers are.

  Args:
    k: the number of fragments, at least 1.
    how: `in_turn`: each synchronization averages the next slice. `random`: at
      each position, it averages the element of a randomly drawn slice, the same
      one on all workers; so an element is averaged with probability 1/k.
    averager: the averager of a fragment. With `in_turn` each fragment has its
      own state, for example of an outer optimizer or a wire's error memory.
    seed: the seed of the random draws.

  Raises:
    ValueError: if `how` is `random` and the averager remembers its last tree.
  """
  start, average, metrics = HOW[how](k, averager, seed)

  def apply(tree, state):
    slices, inner = average(_cut(tree, k), state)
    tree = jax.tree.map(_joined, slices, tree)
    return tree, FragmentsState(state.rounds + 1, inner)

  def one(tree):
    return jax.tree.map(lambda leaf: _slices(leaf, k)[0], tree)

  def sends(tree, workers):
    return averager.sends(jax.eval_shape(one, tree), workers)

  return Averager(
    lambda tree: FragmentsState(jnp.int32(0), start(tree)),
    apply,
    sends,
    agrees=False,
    averages=averager.averages,
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
  """Returns how to average the next slice.

  That is the averager's state of a tree, its `apply` to slices, and `metrics`.
  """

  def take(stacked, index):
    return jax.tree.map(
      lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False), stacked
    )

  def apply(slices, state):
    index = state.rounds % k

    def put(stacked, new):
      put_one = lax.dynamic_update_index_in_dim
      return jax.tree.map(lambda x, y: put_one(x, y, index, 0), stacked, new)

    stacked = slices, state.averager
    return put(stacked, averager.apply(*take(stacked, index)))

  def metrics(state):  # Those of the fragment that was averaged last.
    return averager.metrics(take(state.averager, (state.rounds - 1) % k))

  return lambda tree: jax.vmap(averager.init)(_cut(tree, k)), apply, metrics


def _random(k: int, averager: Averager, seed: int) -> Any:
  """Returns how to average randomly drawn elements."""
  if averager.remembers:
    raise ValueError(
      'random fragments are different elements each time, and averager '
      f'{shown(averager)} remembers what it averaged before'
    )

  def apply(slices, state):
    rows = _draws(state.rounds, slices, k, seed)
    drawn = jax.tree.map(
      lambda s, row: jnp.take_along_axis(s, row[None], 0)[0], slices, rows
    )
    drawn, inner = averager.apply(drawn, state.averager)

    def put(leaf, row, new):
      return jnp.where(jnp.arange(k)[:, None] == row[None], new[None], leaf)

    return jax.tree.map(put, slices, rows, drawn), inner

  return averager.init, apply, lambda state: averager.metrics(state.averager)


def _draws(rounds: Any, slices: Any, k: int, seed: int) -> Any:
  """Draws a slice for each position of every leaf [k, width]: int32 [width]."""
  key = jax.random.fold_in(jax.random.key(seed), rounds)
  leaves, treedef = jax.tree.flatten(slices)
  return treedef.unflatten(
    jax.random.randint(jax.random.fold_in(key, i), leaf.shape[1:], 0, k)
    for i, leaf in enumerate(leaves)
  )


HOW = {'in_turn': _in_turn, 'random': _random}
