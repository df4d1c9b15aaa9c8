"""The selection of a vector's elements by a threshold, and their exchange.

References:
  Yoon and Oh, `MiCRO: Near-Zero Cost Gradient Sparsification for Scaling and
    Accelerating Distributed DNN Training`, HiPC 2023, and its published code.
"""

import math
from typing import NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from selsync_jax.sync import inner
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.consensus import total
from selsync_jax.sync.partitions import Bounds


def wanted(density: float, size: int) -> int:
  """Returns the number of elements to select of `size`, at least 1."""
  return max(1, int(density * size))


def initial_threshold(k: int) -> Float32[Array, '']:
  """Returns MiCRO's first threshold, for k wanted elements."""
  return jnp.float32(1 / (2 * math.sqrt(k)))


def adjusted(
  threshold: Float32[Array, ''],
  selected: Int32[Array, ''],
  k: int,
  count: Int32[Array, ''],
) -> Float32[Array, '']:
  """Returns MiCRO's threshold of the next step, to select about k elements.

  It changes by 0.5%, or by a quarter of that within about 10% of k. Within that
  range the published code always raises it, because its condition for
  `selected > k` always holds. Here it is lowered if too few were selected, by
  the factor that the published code has but never uses.

  Args:
    threshold: the last step's threshold.
    selected: the number of elements that all workers selected at that step.
    k: the number of elements wanted.
    count: the number of steps taken; the first step keeps the threshold.
  """
  ratio = selected / k
  factor = jnp.select(
    [count == 0, ratio > 1.1, ratio > 1, ratio > 0.909],
    [1.0, 1.005, 1.00125, 0.9987],
    0.995,
  )
  return threshold * factor


def slots(k: int, capacity: float, workers: int, size: int) -> int:
  """Returns how many of k wanted elements one worker's message can hold."""
  return min(math.ceil(capacity * k / workers), size)


class Exchange(NamedTuple):
  """The result of `exchange`.

  Attributes:
    mean: float32 [size], the mean over workers where it was sent; 0 elsewhere.
    error: float32 [size], what this worker did not send.
    selected: int32 [N], the number of elements that each worker selected.
    overflow: int32 [], how many of this worker's selected elements did not fit.
  """

  mean: Float32[Array, ' size']
  error: Float32[Array, ' size']
  selected: Int32[Array, ' N']
  overflow: Int32[Array, '']


def exchange(
  values: Float32[Array, ' size'],
  threshold: Float32[Array, ''],
  bounds: Bounds,
  slots: int,
  count: Int32[Array, ''],
  *,
  axis_name: str = AXIS,
) -> Exchange:
  """Computes the mean over workers of the elements that any of them selects.

  Args:
    values: this worker's vector.
    threshold: the smallest magnitude to select, equal on all workers.
    bounds: the bounds of this worker's part; the workers' parts are disjoint.
    slots: the number of elements that a message can hold.
    count: the number of steps taken; a worker that finds nothing selects the
      element of its part with that index, modulo the length of the part.
    axis_name: the mapped axis.
  """
  start, stop = bounds
  indices = lax.iota(jnp.int32, values.size)
  inside = (indices >= start) & (indices < stop)
  chosen = inside & (jnp.abs(values) >= threshold)
  spare = start + count % jnp.maximum(stop - start, 1)
  chosen |= inside & (indices == spare) & ~jnp.any(chosen)
  magnitude, picked = lax.top_k(jnp.where(chosen, jnp.abs(values), -1), slots)
  picked = jnp.where(magnitude >= 0, picked, values.size)
  number = jnp.sum(chosen, dtype=jnp.int32)
  message = jnp.concatenate([number[None], picked])
  gathered = inner.in_parts(
    lambda part: lax.all_gather(part, axis_name), message
  )
  union = gathered[:, 1:].reshape(-1)
  mine = values.at[union].get(mode='fill', fill_value=0)
  # NaN compares false with any threshold, so it would never be selected. Send
  # NaN, so that every worker sees it.
  mine = jnp.where(jnp.all(jnp.isfinite(values)), mine, jnp.nan)
  sums = inner.in_parts(lambda part: total(part, axis_name=axis_name), mine)
  mean = sums / lax.axis_size(axis_name)
  return Exchange(
    jnp.zeros_like(values).at[union].set(mean, mode='drop'),
    values.at[union].set(0, mode='drop'),
    gathered[:, 0],
    number - jnp.minimum(number, slots),
  )
