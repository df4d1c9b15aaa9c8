"""Trees as flat vectors, because every message pays the network's latency."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from selsync_jax.sync import inner

Vector = Float32[Array, ' size']
Vectors = tuple[Float[Array, '...'], ...]


def by_dtype(tree: Any) -> tuple[Vectors, Callable[[Vectors], Any]]:
  """Flattens a tree to one vector for each floating-point dtype.

  Every device of a worker holds a part of each vector, in an order that depends
  on the devices, see `inner.pack`. The second result is a function from such
  vectors to a tree like `tree`. Leaves of other dtypes (counters) are in
  neither, and stay as they are.
  """
  leaves, treedef = jax.tree.flatten(tree)
  members: dict[Any, list[int]] = {}
  for i in _floats(leaves):
    members.setdefault(jnp.result_type(leaves[i]), []).append(i)
  vectors = tuple(
    inner.pack([leaves[i] for i in indices]) for indices in members.values()
  )

  def rebuild(vectors):
    new = list(leaves)
    for vector, indices in zip(vectors, members.values(), strict=True):
      parts = inner.unpack(vector, [leaves[i] for i in indices])
      for i, part in zip(indices, parts, strict=True):
        new[i] = part
    return jax.tree.unflatten(treedef, new)

  return vectors, rebuild


def float32(tree: Any) -> tuple[Vector, Callable[[Vector], Any]]:
  """Flattens all floating-point leaves to one float32 vector, in order.

  Every device of a worker holds all of it. The second result is a function from
  such a vector to a tree like `tree`, with its dtypes.
  """
  leaves, treedef = jax.tree.flatten(tree)
  indices = _floats(leaves)
  vectors = [
    jnp.ravel(inner.whole(inner.at_rest(leaves[i]))).astype(jnp.float32)
    for i in indices
  ]
  flat = jnp.concatenate([jnp.zeros(0, jnp.float32), *vectors])

  def restore(flat):
    new, start = list(leaves), 0
    for i, vector in zip(indices, vectors, strict=True):
      part = lax.slice(flat, (start,), (start + vector.size,))
      new[i] = part.reshape(jnp.shape(new[i])).astype(jnp.result_type(new[i]))
      start += vector.size
    return inner.at_rest(jax.tree.unflatten(treedef, new))

  return flat, restore


def parts(tree: Any) -> list[Float32[Array, '...']]:
  """Returns copies of the floating-point leaves, in float32.

  A state that belongs to a tree is kept in this form and not as a vector, so
  that it is split over the devices of a worker as the tree is.
  """
  return [jnp.array(leaf, jnp.float32) for leaf in floats(tree)]


def zeros(tree: Any) -> list[Float32[Array, '...']]:
  """Returns zeros in the shapes of a tree's `parts`."""
  return [jnp.zeros(leaf.shape, jnp.float32) for leaf in floats(tree)]


def _floats(leaves: list[Any]) -> list[int]:
  """Returns the indices of floating-point leaves."""
  return [i for i, leaf in enumerate(leaves) if is_float(leaf)]


def is_float(leaf: Any) -> bool:
  """Returns whether an array, or its shape, has a floating-point dtype."""
  return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def floats(tree: Any) -> list[Any]:
  """Returns the floating-point leaves, or their shapes."""
  return [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf)]


def size(tree: Any) -> int:
  """Returns the number of elements in the floating-point leaves or shapes."""
  return sum(leaf.size for leaf in floats(tree))
