"""Who selects from where: a vector in parts, one for each worker.

At step t worker i has part (t + i) mod N, of N workers, so each part is every
worker's in turn.

References:
  Yoon and Oh, `MiCRO: Near-Zero Cost Gradient Sparsification for Scaling and
    Accelerating Distributed DNN Training`, HiPC 2023, and its published code
    (`EQUAL`).
  Yoon and Oh, `Preserving Near-Optimal Gradient Sparsification Cost for
    Scalable Distributed Deep Learning`, CCGrid 2024, and its published code
    (`BALANCED`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

Bounds = tuple[Int32[Array, ''], Int32[Array, '']]
"""The first element of a part, and the one after its last."""

BLOCKS = 1024
TOLERANCE = 1.05
"""A part may hold this many times the mean, or its inverse, and stay."""


class MicroState(NamedTuple):
  """State of `micro`.

  Attributes:
    count: int32 [], steps taken.
    threshold: float32 [], of magnitudes.
    selected: int32 [], elements that all workers selected at the last step.
    overflow: int32 [], how many of this worker's did not fit.
    error: `flat.parts` of what this worker has yet to send.
  """

  count: Int32[Array, '']
  threshold: Float32[Array, '']
  selected: Int32[Array, '']
  overflow: Int32[Array, '']
  error: list[Float32[Array, '...']]


class ExDynaState(NamedTuple):
  """State of `exdyna`.

  Of `blocks` and `selected` the first N elements count, one for each part; so
  the shapes do not depend on the number of workers N.

  Attributes:
    count: int32 [], steps taken.
    threshold: float32 [], of magnitudes.
    blocks: int32 [B], how many blocks each part has.
    selected: int32 [B], elements that were selected in each at the last step.
    overflow: int32 [], how many of this worker's did not fit.
    error: `flat.parts` of what this worker has yet to send.
  """

  count: Int32[Array, '']
  threshold: Float32[Array, '']
  blocks: Int32[Array, ' B']
  selected: Int32[Array, ' B']
  overflow: Int32[Array, '']
  error: list[Float32[Array, '...']]


class Partition(NamedTuple):
  """How the vector is divided at each step.

  Attributes:
    state: the type of the reducer's state.
    init: `init(size)`, the partition's own fields of that state.
    divide: `divide(state, size, axis_name)`, the bounds of this worker's part,
      and a function from int32 [N], the elements that each worker selected, to
      the partition's own fields after the step.
  """

  state: Callable[..., Any]
  init: Callable[[int], dict[str, Any]]
  divide: Callable[
    [Any, int, str], tuple[Bounds, Callable[[Any], dict[str, Any]]]
  ]


def _equal(state, size, axis_name):
  workers = lax.axis_size(axis_name)
  part = (state.count + lax.axis_index(axis_name)) % workers
  length, longer = divmod(size, workers)
  start = part * length + jnp.minimum(part, longer)
  bounds = start, start + length + (part < longer)
  return bounds, lambda selected: {'selected': jnp.sum(selected)}


EQUAL = Partition(MicroState, lambda size: {'selected': jnp.int32(0)}, _equal)
"""N parts of equal length, but for one element."""


def _no_blocks(size):
  blocks = jnp.zeros(division(size)[0], jnp.int32)
  return {'blocks': blocks, 'selected': blocks}


def _balanced(state, size, axis_name):
  workers = lax.axis_size(axis_name)
  blocks = _blocks(state, workers, size)
  part = (state.count + lax.axis_index(axis_name)) % workers
  stops = jnp.cumsum(blocks) * division(size)[1]
  bounds = (
    jnp.where(part > 0, stops[part - 1], 0),
    jnp.where(part < workers - 1, stops[part], size),
  )

  def after(selected):
    by_part = jnp.roll(selected, state.count % workers)
    return {
      'blocks': state.blocks.at[:workers].set(blocks),
      'selected': state.selected.at[:workers].set(by_part),
    }

  return bounds, after


BALANCED = Partition(ExDynaState, _no_blocks, _balanced)
"""Rows of blocks, which move between neighbors until all parts have about as
many selected elements."""


def division(size: int) -> tuple[int, int]:
  """How many blocks a vector has, and their length in elements.

  As in the published code, the length is rounded down to a multiple of 32, and
  the last part has the elements that are left over. A vector of less than
  32,768 elements, for which that code has no blocks, has as many as it can have
  up to 1,024, of a length that is not rounded.
  """
  blocks = min(BLOCKS, size)
  length = size // blocks
  return blocks, length // 32 * 32 or length


def _blocks(state, workers, size) -> Int32[Array, ' N']:
  """How many blocks each part has at this step."""
  blocks, length = division(size)
  if workers > blocks:
    raise ValueError(
      f'exdyna needs a block for each worker, got {workers} workers and '
      f'{blocks} blocks'
    )
  return jnp.where(
    state.count == 0,
    blocks // workers + (jnp.arange(workers) < blocks % workers),
    rebalanced(
      state.blocks[:workers],
      state.selected[:workers],
      length / size,
      blocks / (4 * workers),
    ),
  )


def rebalanced(
  blocks: Int32[Array, ' N'],
  selected: Int32[Array, ' N'],
  share: float,
  least: float,
) -> Int32[Array, ' N']:
  """The parts after each pair of neighbors has moved a block or none.

  Pairs take turns from left to right. A block moves if one of the two has more
  than 1.05 times the mean and the other less than the mean divided by 1.05. It
  then counts as a block with the average number of selected elements. Averages
  are rounded down, as in the published code. Loads that slope gently, such as
  0.5, 1, 1, and 1.5 times the mean, stay as they are.

  Args:
    blocks: how many each part has.
    selected: elements that were selected in each.
    share: the length of a block, relative to the vector's.
    least: how many blocks a part keeps.
  """
  total = jnp.sum(selected)
  mean = jnp.maximum(total // blocks.size, 1)
  moved = jnp.int32(share * total)

  def visit(i, carry):
    blocks, load = carry
    left, right = load[i] / mean, load[i + 1] / mean
    gives = (left > TOLERANCE) & (right < 1 / TOLERANCE)
    takes = (left < 1 / TOLERANCE) & (right > TOLERANCE)
    gives &= blocks[i] - 1 >= least
    takes &= blocks[i + 1] - 1 >= least
    step = takes.astype(jnp.int32) - gives.astype(jnp.int32)
    by = jnp.stack([step, -step])
    pair = jnp.stack([i, i + 1])
    return blocks.at[pair].add(by), load.at[pair].add(moved * by)

  return lax.fori_loop(0, blocks.size - 1, visit, (blocks, selected))[0]
