"""A bit-for-bit comparison of replicas.

A fingerprint is one 32-bit checksum per leaf: the sum of its words, each hashed
with its index by a bijection. So a change of one word always shows. Changes of
several words cancel with probability 2^-32.
"""

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32

from selsync_jax.sync.consensus import AXIS


def _checksum(leaf) -> UInt32[Array, '']:
  leaf = jnp.ravel(leaf)
  bits = jnp.dtype(leaf.dtype).itemsize * 8
  words = lax.bitcast_convert_type(leaf, f'uint{min(bits, 32)}')
  words = jnp.ravel(words).astype(jnp.uint32)
  words ^= lax.iota(jnp.uint32, words.size) * jnp.uint32(0x9E3779B1)
  return jnp.sum(mix(words))


def mix(words: UInt32[Array, '*shape']) -> UInt32[Array, '*shape']:
  """Hashes every word with the finalizer of MurmurHash3, a bijection."""
  words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
  words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
  return words ^ (words >> 16)


def first_difference(tree: Any, *, axis_name: str = AXIS) -> Int32[Array, '']:
  """Returns the index of the first leaf in which workers differ, or -1.

  It takes two small all-reduces. The result is equal on all workers.
  """
  marks = jnp.stack([_checksum(leaf) for leaf in jax.tree.leaves(tree)])
  differs = lax.pmax(marks, axis_name) != lax.pmin(marks, axis_name)
  return jnp.where(
    jnp.any(differs), jnp.argmax(differs).astype(jnp.int32), jnp.int32(-1)
  )
