"""ExDyna: MiCRO with parts that grow and shrink until they hold as much.

References:
  Yoon and Oh, `Preserving Near-Optimal Gradient Sparsification Cost for
    Scalable Distributed Deep Learning`, CCGrid 2024, and its published code.
"""

from typing import NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from selsync_jax.sync import flat
from selsync_jax.sync import selection
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.part import part
from selsync_jax.sync.reducers import skip_nonfinite
from selsync_jax.sync.transformation import Reducer

BLOCKS = 1024
TOLERANCE = 1.05
"""A part may hold this many times the mean, or its inverse, and stay."""


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


@part
def exdyna(
  density: float, *, capacity: float = 2.0, axis_name: str = AXIS
) -> Reducer:
  """ExDyna: `micro`, with parts of about as many selected elements each.

  The vector has up to 1,024 blocks (`division`), a part is a row of them, and
  from step to step blocks move between neighbors (`rebalanced`).

  Args:
    density: k / size, the fraction of the elements to select, in (0, 1]. k is
      rounded down, to at least 1. The paper's is 0.001.
    capacity: the places in a worker's message, in multiples of k / N, at least
      1; its largest elements take them.
    axis_name: the mapped axis.

  Raises:
    ValueError: if `density` or `capacity` is out of range; in a step, if there
      are more workers than blocks.
  """
  selection.check_density(density)
  selection.check_capacity(capacity)

  def init(params):
    size = flat.size(params)
    zero, error = jnp.int32(0), flat.zeros(params)
    threshold = selection.initial_threshold(selection.wanted(density, size))
    blocks = jnp.zeros(division(size)[0], jnp.int32)
    return ExDynaState(zero, threshold, blocks, blocks, zero, error)

  def update(updates, state, params=None, **extra_args):
    del params, extra_args
    values, rebuild = flat.float32(updates)
    error, keep = flat.float32(state.error)
    workers = lax.axis_size(axis_name)
    blocks = _blocks(state, workers, values.size)
    threshold, found = selection.select(
      values + error,
      state,
      _part(blocks, values.size, state.count, axis_name),
      density,
      capacity,
      axis_name=axis_name,
    )
    by_part = jnp.roll(found.selected, state.count % workers)
    new = ExDynaState(
      state.count + 1,
      threshold,
      state.blocks.at[:workers].set(blocks),
      state.selected.at[:workers].set(by_part),
      found.overflow,
      keep(found.error),
    )
    mean, state = skip_nonfinite(found.mean, new, state)
    return rebuild(mean), state

  def sends(params, workers):
    size = flat.size(params)
    return selection.sends_selection(size, density, capacity, workers)

  return Reducer(init, update, sends, biased=True)


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


def _part(blocks, size, count, axis_name) -> selection.Bounds:
  """The bounds of this worker's part."""
  workers = blocks.size
  part = (count + lax.axis_index(axis_name)) % workers
  stops = jnp.cumsum(blocks) * division(size)[1]
  return (
    jnp.where(part > 0, stops[part - 1], 0),
    jnp.where(part < workers - 1, stops[part], size),
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
