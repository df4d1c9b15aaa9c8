"""A sparse wire: sends the largest changes in two bits each, keeps the rest.

References:
  Sarfi et al., `Communication Efficient LLM Pre-training with SparseLoCo`,
    2025 (arXiv 2508.15706).
"""

import dataclasses
import functools
import math

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32, UInt8

from selsync_jax.config import Fraction, Probability
from selsync_jax.sync import wires, worker_mesh
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.part import part

CHUNK = 4096
"""The number of elements in a chunk; an index in a chunk has two bytes."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Chosen:
  """The encoded largest elements of each chunk.

  Attributes:
    content: the elements' indices, two bits for each element, and two means.
    length: the number of elements in a chunk.
    k: the number of chosen elements in a chunk.
  """

  content: UInt8[Array, 'chunks nbytes']
  length: int = dataclasses.field(metadata={'static': True})
  k: int = dataclasses.field(metadata={'static': True})


@part
def sparse(
  density: Fraction = 0.02, *, decay: Probability = 1.0, axis_name: str = AXIS
) -> wires.Wire:
  """Sends the largest changes of each chunk of 4,096 elements, in two bits.

  Each worker sends the indices of its largest changes since the last consensus,
  with two bits for each. One is the sign; the other says whether the magnitude
  is in the upper half of the range sent. The mean of its half replaces each
  magnitude. The mean over workers counts unsent elements as zero. Unsent
  elements and rounding errors, times `decay`, are added to the worker's next
  message.

  Args:
    density: the fraction of the elements that a worker sends, in (0, 1],
      rounded up to whole elements of a chunk; the paper's is 0.01 to 0.03.
    decay: the factor of a worker's error memory at each average, in [0, 1].
      With 1 nothing is lost. The paper's is below 1, and replaces an outer
      momentum.
  """

  def encode(change, error):
    given = change + decay * error
    chunk, k = _chunk(density, given.size)
    rows = jnp.pad(given, (0, -given.size % chunk)).reshape(-1, chunk)
    content = _encode(rows, k)
    own = _add(jnp.zeros_like(rows), content, k)
    return Chosen(content, chunk, k), given - own.reshape(-1)[: given.size]

  def travel(chosen, count):
    content = chosen.content
    gathered = worker_mesh.all_gather(content.reshape(-1), axis_name)
    gathered = gathered.reshape(-1, *content.shape)
    workers = lax.axis_size(axis_name)
    zeros = jnp.zeros((len(content), chosen.length), jnp.float32)
    # In the same order on all workers. The loop starts from the first message,
    # so that its carry has the right type.
    sums = lax.fori_loop(
      *(1, workers, lambda i, sums: _add(sums, gathered[i], chosen.k)),
      _add(zeros, gathered[0], chosen.k),
    )
    return sums.reshape(-1) / (count or workers), None

  wire = wires.sends_changes(encode, travel, axis_name, coarse=True)
  return dataclasses.replace(wire, withholds=True)


def _chunk(density: float, size: int) -> tuple[int, int]:
  """Returns the length of a chunk, and the number of elements sent from it."""
  chunk = min(CHUNK, size)
  return chunk, math.ceil(density * chunk)


def _encode(
  rows: Float32[Array, 'chunks length'], k: int
) -> UInt8[Array, 'chunks nbytes']:
  """Returns the bytes of k indices, of two bits for each, and of two means."""
  size, places = lax.top_k(jnp.abs(rows), k)
  chosen = jnp.take_along_axis(rows, places, axis=1)
  upper = size > size[:, :1] / 2 + size[:, -1:] / 2
  means = [_mean(size, ~upper), _mean(size, upper)]
  # All workers must see a NaN anywhere.
  finite = jnp.all(jnp.isfinite(rows), axis=1)
  means = [jnp.where(finite, each, jnp.nan) for each in means]
  codes = (chosen < 0).astype(jnp.uint8) + 2 * upper.astype(jnp.uint8)
  codes = jnp.pad(codes, ((0, 0), (0, -k % 4))).reshape(len(rows), -1, 4)
  packed = functools.reduce(
    jnp.bitwise_or, [codes[..., i] << 2 * i for i in range(4)]
  )
  parts = [
    lax.bitcast_convert_type(places.astype(jnp.int16), jnp.uint8),
    packed,
    lax.bitcast_convert_type(jnp.stack(means, axis=1), jnp.uint8),
  ]
  return jnp.concatenate([x.reshape(len(rows), -1) for x in parts], axis=1)


def _mean(size, where):
  """Returns the mean over the selected elements of each row, 0 without any."""
  count = jnp.maximum(jnp.sum(where, axis=1), 1)
  # The sum of a chunk may exceed float32. Powers of two do not round.
  total = jnp.sum(jnp.where(where, size / CHUNK, 0), axis=1)
  return total / count * CHUNK


def _add(sums, message, k):
  """Adds a worker's message to the chunks of `sums`."""
  places, codes, means = jnp.split(
    message, [2 * k, message.shape[1] - 8], axis=1
  )
  pairs = places.reshape(-1, k, 2)
  places = lax.bitcast_convert_type(pairs, jnp.int16).astype(jnp.int32)
  means = lax.bitcast_convert_type(means.reshape(-1, 2, 4), jnp.float32)
  codes = jnp.stack([codes >> 2 * i & 3 for i in range(4)], axis=-1)
  codes = codes.reshape(len(sums), -1)[:, :k]
  size = jnp.where(codes & 2 > 0, means[:, 1:], means[:, :1])
  rows = lax.broadcasted_iota(jnp.int32, places.shape, 0)
  return sums.at[rows, places].add(jnp.where(codes & 1 > 0, -size, size))
