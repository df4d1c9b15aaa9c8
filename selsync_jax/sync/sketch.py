"""AMS sketches: the squared norm of a sum of vectors, from small summaries.

A sketch is linear: the mean of the workers' sketches is the sketch of their
mean. Every element is added, with a random sign, to one of the `width` numbers
of each row. The squared norm of a row is an unbiased estimate of the vector's,
with variance at most `2 / width` times its square, and the median over rows is
rarely far off.

Elements are placed in chunks of `width`, each rotated by a random offset. So no
two elements of a chunk meet, two of different chunks meet with probability
`1 / width`, and a sketch is a sum without scattered writes, whose order is
fixed on every device.

References:
  Alon, Matias and Szegedy, `The Space Complexity of Approximating the Frequency
    Moments`, STOC 1996.
  Cormode and Garofalakis, `Sketching Streams Through the Net`, VLDB 2005.
"""

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32

from selsync_jax.sync.replicas import mix

MAX_DEPTH = 32
"""The most rows: an element's signs are the bits of one 32-bit hash."""


def sketch(
  vector: Float32[Array, ' size'], depth: int, width: int, seed: int
) -> Float32[Array, 'depth width']:
  """Returns the sketch of a vector, in at most `MAX_DEPTH` rows.

  The seed of signs and offsets must be the same on all workers.
  """
  chunks = -(-vector.size // width)
  padded = jnp.pad(vector, (0, chunks * width - vector.size))
  padded = padded.reshape(chunks, width)
  # The golden ratio's bits separate the streams of different seeds.
  start = mix(jnp.uint32(seed) * jnp.uint32(0x9E3779B1) + 1)
  bits = mix(lax.iota(jnp.uint32, padded.size) + start).reshape(padded.shape)
  offsets = mix(lax.iota(jnp.uint32, depth * chunks) ^ mix(start))
  offsets = (offsets % width).astype(jnp.int32).reshape(depth, chunks, 1)

  def row(index, offset):
    signed = jnp.where((bits >> index) & 1 == 1, padded, -padded)
    columns = (lax.iota(jnp.int32, width)[None] + offset) % width
    return jnp.sum(jnp.take_along_axis(signed, columns, axis=1), axis=0)

  return jax.vmap(row)(lax.iota(jnp.uint32, depth), offsets)


def squared_norm(
  sketch: Float32[Array, 'depth width'],
) -> Float32[Array, '']:
  """Estimates the squared L2 norm of the vector that was sketched."""
  return jnp.median(jnp.sum(jnp.square(sketch), axis=1))
