"""Sparse reducers: the gradient's largest elements travel, the rest waits.

A worker adds what it does not send to its next gradient (error feedback).
Messages have a fixed size. Selected elements that do not fit stay in the error
memory and are counted.

References:
  Stich, Cordonnier and Jaggi, `Sparsified SGD with Memory`, NeurIPS 2018
    (`top_k`).
  Yoon and Oh, `MiCRO: Near-Zero Cost Gradient Sparsification for Scaling and
    Accelerating Distributed DNN Training`, HiPC 2023, and its published code
    (`micro`).
  Yoon and Oh, `Preserving Near-Optimal Gradient Sparsification Cost for
    Scalable Distributed Deep Learning`, CCGrid 2024, and its published code
    (`exdyna`).
"""

from typing import Annotated

from annotated_types import Ge
from jax import lax
import jax.numpy as jnp

from selsync_jax.config import Fraction
from selsync_jax.sync import flat
from selsync_jax.sync import inner
from selsync_jax.sync import partitions
from selsync_jax.sync import resizing
from selsync_jax.sync import selection
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.part import part
from selsync_jax.sync.reducers import error_feedback
from selsync_jax.sync.reducers import skip_nonfinite
from selsync_jax.sync.traffic import Collective
from selsync_jax.sync.transformation import Reducer


@part
def top_k(density: Fraction, *, axis_name: str = AXIS) -> Reducer:
  """Sends each worker's largest elements; the mean counts others as zero.

  Every step takes one all-gather of indices and values. The mean has up to N
  times as many nonzero elements as one worker sends.

  Args:
    density: k / size, the fraction of the elements that a worker sends, in
      (0, 1]. k is rounded down, to at least 1.
    axis_name: the mapped axis.
  """

  def mean(values, error):
    values += error
    _, picked = lax.top_k(
      jnp.abs(values), selection.wanted(density, values.size)
    )
    sent = jnp.where(jnp.all(jnp.isfinite(values)), values[picked], jnp.nan)
    message = jnp.stack([picked, lax.bitcast_convert_type(sent, jnp.int32)])
    gathered = inner.in_parts(
      lambda part: lax.all_gather(part, axis_name), message
    )

    def add(worker, sums):
      indices, bits = gathered[worker]
      received = lax.bitcast_convert_type(bits, jnp.float32)
      return sums.at[indices].add(received, unique_indices=True)

    # One worker after another, so that all workers add in the same order.
    workers = lax.axis_size(axis_name)
    sums = lax.fori_loop(0, workers, add, jnp.zeros_like(values))
    return sums / workers, values.at[picked].set(0)

  def sends(params, workers):
    del workers
    nbytes = 8 * selection.wanted(density, flat.size(params))
    return (Collective('all_gather', nbytes, 'step'),)

  return error_feedback(mean, sends, biased=True)


Capacity = Annotated[float, Ge(1)]
"""The places in a worker's message, in multiples of k / N."""


@part
def micro(
  density: Fraction, *, capacity: Capacity = 2.0, axis_name: str = AXIS
) -> Reducer:
  r"""Selects by a threshold, each worker from a part of its own (MiCRO).

  The vector has N parts whose lengths differ by at most one element. At step t,
  worker i selects from part (t + i) mod N the elements that reach the
  threshold, or a single one if none does. All workers send their values of all
  selected elements, so the mean of these is exact, and every error memory is
  emptied there. The threshold starts at :math:`1 / (2 \sqrt k)` and is adjusted
  at every step to the number of elements selected, see `selection.adjusted`.
  Every step takes an all-gather of indices and an all-reduce of values.

  The published code makes messages as long as the longest selection. Here they
  have a fixed length, and what does not fit counts as selected.

  Args:
    density: k / size, the fraction of the elements to select, in (0, 1]. k is
      rounded down, to at least 1. The paper's is 0.001.
    capacity: the number of elements that a worker's message can hold, in
      multiples of k / N, at least 1; if it selects more, the largest are sent.
    axis_name: the mapped axis.
  """
  return _by_threshold(partitions.EQUAL, density, capacity, axis_name)


@part
def exdyna(
  density: Fraction, *, capacity: Capacity = 2.0, axis_name: str = AXIS
) -> Reducer:
  """Selects as `micro` does, from parts that are rebalanced (ExDyna).

  The vector has up to 1,024 blocks (`partitions.division`). A part is a row of
  them, and at every step blocks may move between neighboring parts
  (`partitions.rebalanced`), so that all workers select about equally many
  elements.

  Args:
    density: k / size, the fraction of the elements to select, in (0, 1]. k is
      rounded down, to at least 1. The paper's is 0.001.
    capacity: the number of elements that a worker's message can hold, in
      multiples of k / N, at least 1; if it selects more, the largest are sent.
    axis_name: the mapped axis.

  Raises:
    ValueError: in a step, if there are more workers than blocks.
  """
  return _by_threshold(partitions.BALANCED, density, capacity, axis_name)


def _by_threshold(
  partition: partitions.Partition,
  density: float,
  capacity: float,
  axis_name: str,
) -> Reducer:
  """Returns a reducer whose workers select by a threshold from their parts."""

  def init(params):
    size, zero = flat.size(params), jnp.int32(0)
    return partition.state(
      count=zero,
      threshold=selection.initial_threshold(selection.wanted(density, size)),
      overflow=zero,
      error=flat.zeros(params),
      **partition.init(size),
    )

  def update(updates, state, params=None, **extra_args):
    del params, extra_args
    values, rebuild = flat.float32(updates)
    error, keep = flat.float32(state.error)
    size, workers = values.size, lax.axis_size(axis_name)
    k = selection.wanted(density, size)
    bounds, after = partition.divide(state, size, axis_name)
    threshold = selection.adjusted(
      state.threshold, jnp.sum(state.selected), k, state.count
    )
    found = selection.exchange(
      values + error,
      threshold,
      bounds,
      selection.slots(k, capacity, workers, size),
      state.count,
      axis_name=axis_name,
    )
    new = state._replace(
      count=state.count + 1,
      threshold=threshold,
      overflow=found.overflow,
      error=keep(found.error),
      **after(found.selected),
    )
    mean, state = skip_nonfinite(found.mean, new, state)
    return rebuild(mean), state

  def sends(params, workers):
    size = flat.size(params)
    k = selection.wanted(density, size)
    places = selection.slots(k, capacity, workers, size)
    return (
      Collective('all_gather', 4 * (1 + places), 'step'),
      Collective('all_reduce', 4 * workers * places, 'step'),
    )

  return Reducer(
    init,
    update,
    sends,
    metrics=lambda state: {'overflow': state.overflow},
    resize=resizing.fields(threshold=resizing.first, error=resizing.mean),
    biased=True,
  )
