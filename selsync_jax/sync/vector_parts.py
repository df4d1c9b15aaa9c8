"""Partitions of a vector into parts, one for each worker to select from.

At step t, worker i of N selects from part (t + i) mod N, so every worker visits
every part.

For the papers see `sparse`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

Division = tuple[tuple[Any, Any], Callable[[Any], dict[str, Any]]]
"""The bounds of this worker's part, `(start, stop)`, and a function. It takes
int32 [N], the number of elements that each worker selected, and returns the
partition's own fields of the next state."""

BLOCKS = 1024
TOLERANCE = 1.05
"""A part's load may exceed the mean, or fall below it, by this factor."""


class MicroState(NamedTuple):
  """State of `micro`, whose N parts differ in length by at most one element."""

  count: Int32[Array, '']  # Steps taken.
  threshold: Float32[Array, '']  # The smallest magnitude that is selected.
  selected: Int32[Array, '']  # Number selected by all workers at the last step.
  selection: Float32[Array, '']  # The longest selection, in units of k / N.
  overflow: Float32[Array, '']  # The share of this worker's that did not fit.
  error: list[Float32[Array, '...']]  # `flat.parts` of the unsent rest.

  @staticmethod
  def own(size: int) -> dict[str, Any]:
    """Returns the partition's own fields, before the first step."""
    return {'selected': jnp.int32(0)}

  def divide(self, size: int, axis_name: str) -> Division:
    """Divides a vector of this size among the workers."""
    workers = lax.axis_size(axis_name)
    part = (self.count + lax.axis_index(axis_name)) % workers
    length, longer = divmod(size, workers)
    start = part * length + jnp.minimum(part, longer)
    bounds = start, start + length + (part < longer)
    return bounds, lambda selected: {'selected': jnp.sum(selected)}


class ExDynaState(NamedTuple):
  """State of `exdyna`, whose parts move blocks between neighbors.

  The other fields are as in `MicroState`. Only the first N elements of `blocks`
  and `selected` are used, so the shapes do not depend on the number of workers
  N.
  """

  count: Int32[Array, '']
  threshold: Float32[Array, '']
  blocks: Int32[Array, ' B']  # The number of blocks in each part.
  selected: Int32[Array, ' B']  # In each part at the last step.
  selection: Float32[Array, '']
  overflow: Float32[Array, '']
  error: list[Float32[Array, '...']]

  @staticmethod
  def own(size: int) -> dict[str, Any]:
    """See `MicroState`."""
    blocks = jnp.zeros(_division(size)[0], jnp.int32)
    return {'blocks': blocks, 'selected': blocks}

  def divide(self, size: int, axis_name: str) -> Division:
    """See `MicroState`."""
    workers = lax.axis_size(axis_name)
    blocks = _blocks(self, workers, size)
    part = (self.count + lax.axis_index(axis_name)) % workers
    stops = jnp.cumsum(blocks) * _division(size)[1]
    bounds = (
      jnp.where(part > 0, stops[part - 1], 0),
      jnp.where(part < workers - 1, stops[part], size),
    )

    def after(selected):
      by_part = jnp.roll(selected, self.count % workers)
      return {
        'blocks': self.blocks.at[:workers].set(blocks),
        'selected': self.selected.at[:workers].set(by_part),
      }

    return bounds, after


def _division(size: int) -> tuple[int, int]:
  """Returns the number of blocks in a vector, and their length in elements.

  As in the published code, the length is rounded down to a multiple of 32, and
  the last part gets the remaining elements. That code has no blocks for fewer
  than 32,768 elements. Here such a vector has one block per element, up to
  1,024, and the length is not rounded.
  """
  blocks = min(BLOCKS, size)
  length = size // blocks
  return blocks, length // 32 * 32 or length


def _blocks(state, workers, size) -> Int32[Array, ' N']:
  """Returns the number of blocks in each part at this step."""
  blocks, length = _division(size)
  if workers > blocks:
    raise ValueError(
      f'exdyna needs a block for each worker, got {workers} workers and '
      f'{blocks} blocks'
    )
  return jnp.where(
    state.count == 0,
    blocks // workers + (jnp.arange(workers) < blocks % workers),
    _rebalanced(
      state.blocks[:workers],
      state.selected[:workers],
      length / size,
      blocks / (4 * workers),
    ),
  )


def _rebalanced(blocks, selected, share, least) -> Int32[Array, ' N']:
  """Moves at most one block between each pair of neighboring parts.

  The pairs are visited from left to right. A block moves if one part has more
  than 1.05 times the mean load and the other less than the mean divided by
  1.05. It then counts as a block with the average number of selected elements.
  Averages are rounded down, as in the published code. Gently sloping loads,
  such as 0.5, 1, 1, and 1.5 times the mean, do not change.

  `share` is the share of a block in the vector, and `least` the fewest blocks
  of a part. `blocks` and `selected`, both int32 [N], count blocks and selected
  elements in each part.
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
