"""An averager of a part of the parameters at a time.

A synchronization that averages one k-th of the parameters costs one k-th of the
bytes, so there can be k times as many for the same total, and the network never
has to carry a whole model at once.

References:
  Douillard et al., `Streaming DiLoCo with Overlapping Communication`, 2025,
    section 2.2 (`in_turn`). Its fragments are groups of layers.
  Beton et al., `Improving the Efficiency of Distributed Training using Sparse
    Parameter Averaging`, MCDC workshop at ICLR 2025 (`random`: SPARTA).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Int32, Shaped

from selsync_jax.config import Count
from selsync_jax.sync import resizing
from selsync_jax.sync.averagers import Averager
from selsync_jax.sync.averagers import MEAN
from selsync_jax.sync.part import Metrics
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
    ValueError: if `how` is `random` and the averager remembers what it averaged
      before.
  """
  init, apply, metrics = HOW[how](k, averager, seed)
  return Averager(
    init,
    apply,
    _sends(k, averager),
    agrees=False,
    averages=averager.averages,
    check=averager.check,
    metrics=metrics,
    resize=resizing.fields(rounds=resizing.first, averager=averager.resize),
  )


Functions = tuple[Callable[..., Any], Callable[..., Any], Metrics]
"""`init`, `apply` and `metrics` of an averager."""


def _slices(leaf: Any, k: int) -> Shaped[Array, 'k width']:
  """Cuts an array into k slices, padded with zeros at the end."""
  leaf = jnp.ravel(leaf)
  width = -(-leaf.size // k)
  return jnp.pad(leaf, (0, k * width - leaf.size)).reshape(k, width)


def _joined(slices: Shaped[Array, 'k width'], like: Any) -> Any:
  """Joins slices to an array with the shape of `like`."""
  size, shape = jnp.size(like), jnp.shape(like)
  return slices.reshape(-1)[:size].reshape(shape)


def _sends(k, averager):
  def one(tree):
    return jax.tree.map(lambda leaf: _slices(leaf, k)[0], tree)

  return lambda tree, workers: averager.sends(
    jax.eval_shape(one, tree), workers
  )


def _in_turn(k: int, averager: Averager, seed: int) -> Functions:
  del seed

  def cut(tree):
    return jax.tree.map(lambda leaf: _slices(leaf, k), tree)

  def take(stacked, index):
    return jax.tree.map(
      lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False), stacked
    )

  def init(tree):
    return FragmentsState(jnp.int32(0), jax.vmap(averager.init)(cut(tree)))

  def apply(tree, state):
    index = state.rounds % k

    def put(stacked, new):
      return jax.tree.map(
        lambda x, y: lax.dynamic_update_index_in_dim(x, y, index, 0),
        stacked,
        new,
      )

    slices = cut(tree)
    one, inner = averager.apply(
      take(slices, index), take(state.averager, index)
    )
    tree = jax.tree.map(_joined, put(slices, one), tree)
    return tree, FragmentsState(state.rounds + 1, put(state.averager, inner))

  def metrics(state):  # Those of the fragment that was averaged last.
    return averager.metrics(take(state.averager, (state.rounds - 1) % k))

  return init, apply, metrics


def _random(k: int, averager: Averager, seed: int) -> Functions:
  if averager.remembers:
    raise ValueError(
      'random fragments are different elements each time, and averager '
      f'{shown(averager)} remembers what it averaged before'
    )

  def init(tree):
    return FragmentsState(jnp.int32(0), averager.init(tree))

  def apply(tree, state):
    slices = jax.tree.map(lambda leaf: _slices(leaf, k), tree)
    rows = _draws(state.rounds, slices, k, seed)
    drawn = jax.tree.map(
      lambda s, row: jnp.take_along_axis(s, row[None], 0)[0], slices, rows
    )
    drawn, inner = averager.apply(drawn, state.averager)
    slices = jax.tree.map(
      lambda s, row, new: jnp.where(
        jnp.arange(k)[:, None] == row[None], new[None], s
      ),
      slices,
      rows,
      drawn,
    )
    tree = jax.tree.map(_joined, slices, tree)
    return tree, FragmentsState(state.rounds + 1, inner)

  return init, apply, lambda state: averager.metrics(state.averager)


def _draws(rounds: Any, slices: Any, k: int, seed: int) -> Any:
  """Draws a slice for each position of every leaf [k, width]: int32 [width]."""
  key = jax.random.fold_in(jax.random.key(seed), rounds)
  leaves, treedef = jax.tree.flatten(slices)
  return treedef.unflatten(
    jax.random.randint(jax.random.fold_in(key, i), leaf.shape[1:], 0, k)
    for i, leaf in enumerate(leaves)
  )


HOW = {'in_turn': _in_turn, 'random': _random}
