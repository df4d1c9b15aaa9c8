"""Whether replicas that should be equal are, bit for bit.

A fingerprint is one 32-bit sum a leaf. Each element's bits are multiplied by an
odd number that depends on its position; an odd factor has an inverse modulo
2^32, so a change of any single element always changes the sum.
"""

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32

from selsync_jax.selsync import AXIS


def fingerprint(tree: Any) -> UInt32[Array, 'leaves']:
  """A checksum of every leaf of one worker's tree, in `jax.tree` order."""
  return jnp.stack([_checksum(leaf) for leaf in jax.tree.leaves(tree)])


def _checksum(leaf) -> UInt32[Array, '']:
  leaf = jnp.ravel(leaf)
  bits = jnp.dtype(leaf.dtype).itemsize * 8
  words = lax.bitcast_convert_type(leaf, f'uint{min(bits, 32)}')
  words = jnp.ravel(words).astype(jnp.uint32)
  place = lax.iota(jnp.uint32, words.size)
  # Knuth's multiplicative constant spreads neighbours; `| 1` makes it odd.
  return jnp.sum(words * (place * jnp.uint32(2654435761) | 1))


def first_difference(tree: Any, *, axis_name: str = AXIS) -> Int32[Array, '']:
  """Where workers differ: the number of the first such leaf, or -1.

  Two small all-reduces; equal on all workers.

  Args:
    tree: one worker's arrays.
    axis_name: the mapped axis.
  """
  marks = fingerprint(tree)
  differs = lax.pmax(marks, axis_name) != lax.pmin(marks, axis_name)
  return jnp.where(
    jnp.any(differs), jnp.argmax(differs).astype(jnp.int32), jnp.int32(-1)
  )


def leaf_names(tree: Any) -> list[str]:
  """The paths of the leaves, in the order of their numbers."""
  return [
    jax.tree_util.keystr(path, simple=True, separator='/')
    for path, _ in jax.tree_util.tree_leaves_with_path(tree)
  ]
