"""Sparse reducers: send the gradient's largest elements, keep the rest.

A worker adds unsent elements to its next gradient (error feedback).

References (with titles in `selsync_jax.methods.table`):
  Stich, Cordonnier and Jaggi, NeurIPS 2018 (`top_k`).
  Yoon and Oh, HiPC 2023, and its published code (`micro`).
  Yoon and Oh, CCGrid 2024, and its published code (`exdyna`).
"""

from collections.abc import Callable
import functools
import math
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from selsync_jax.config import Fraction
from selsync_jax.sync import flat, resizing, worker_mesh
from selsync_jax.sync.agreement import typed_as
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.part import part
from selsync_jax.sync.reducers import error_feedback, skip_nonfinite
from selsync_jax.sync.traffic import annotated
from selsync_jax.sync.transformation import Reducer


@part
def top_k(density: Fraction, *, axis_name: str = AXIS) -> Reducer:
  """Sends each worker's largest elements; the mean counts others as zero.

  Every step takes one all-gather of indices and values. The mean has up to N
  times as many nonzero elements as one worker sends.

  Args:
    density: k / size, the fraction of the elements that a worker sends, in
      (0, 1]. k is rounded down, to at least 1.
  """

  def mean(values, error):
    values += error
    _, picked = lax.top_k(jnp.abs(values), _wanted(density, values.size))
    sent = jnp.where(jnp.all(jnp.isfinite(values)), values[picked], jnp.nan)
    message = jnp.stack([picked, lax.bitcast_convert_type(sent, jnp.int32)])
    gathered = worker_mesh.all_gather(message, axis_name)

    def add(worker, sums):
      indices, bits = gathered[worker]
      received = lax.bitcast_convert_type(bits, jnp.float32)
      return sums.at[indices].add(received, unique_indices=True)

    # One worker after another, so that all workers add in the same order.
    workers = lax.axis_size(axis_name)
    sums = lax.fori_loop(0, workers, add, jnp.zeros_like(values))
    return sums / workers, values.at[picked].set(0)

  return error_feedback(mean, biased=True)


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
    index = (self.count + lax.axis_index(axis_name)) % workers
    length, longer = divmod(size, workers)
    start = index * length + jnp.minimum(index, longer)
    bounds = start, start + length + (index < longer)
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
    index = (self.count + lax.axis_index(axis_name)) % workers
    stops = jnp.cumsum(blocks) * _division(size)[1]
    bounds = (
      jnp.where(index > 0, stops[index - 1], 0),
      jnp.where(index < workers - 1, stops[index], size),
    )

    def after(selected):
      by_part = jnp.roll(selected, self.count % workers)
      return {
        'blocks': self.blocks.at[:workers].set(blocks),
        'selected': self.selected.at[:workers].set(by_part),
      }

    return bounds, after


Capacity = Annotated[float, Ge(1)]
"""The length of a worker's message, in multiples of k / N."""


@part
def micro(
  density: Fraction,
  *,
  capacity: Capacity | None = None,
  axis_name: str = AXIS,
) -> Reducer:
  r"""Selects by a threshold, each worker from a separate part (MiCRO).

  The vector has N parts whose lengths differ by at most one element. At step t,
  worker i selects from part (t + i) mod N the elements that reach the
  threshold, or a single one if none does. All workers send their values of all
  selected elements. So their mean is exact, and every error memory is emptied
  there. The threshold starts at :math:`1 / (2 \sqrt k)` and follows the number
  of selected elements. Every step takes two all-gathers, of the lengths of the
  selections and of their indices, and an all-reduce of values.

  As published, messages are as long as the longest selection, and this length
  is the counted traffic. The arrays of a compiled program have fixed lengths.
  So real messages are padded to k / N, 2 k / N, 4 k / N and so on. While the
  threshold is far too low, for example at the start, they are longer than an
  all-reduce.

  A run's rows have `selection`, the length of the longest selection in
  multiples of k / N. With a `capacity` they also have `overflow`, the share of
  a worker's selection that does not fit.

  Args:
    density: k / size, the fraction of the elements that all workers together
      select, in (0, 1]; in `top_k`, each worker selects this fraction. k is
      rounded down, to at least 1, and must be at least N, since every worker
      selects at least one element. An element waits for about 1 / density
      steps. If it waits too long for the learning rate, it overshoots, and the
      threshold grows without end. On 513 parameters with SGD at 0.05 the
      threshold settles if k is at least 24 (5%), for 4, 8 and 16 workers alike.
      The paper's density is 0.001.
    capacity: a fixed length of the messages, in multiples of k / N, at least 1.
      Not in the paper. A worker that selects more sends the largest; the rest
      waits in its error memory.
  """
  return _by_threshold(MicroState, density, capacity, axis_name)


@part
def exdyna(
  density: Fraction,
  *,
  capacity: Capacity | None = None,
  axis_name: str = AXIS,
) -> Reducer:
  """Selects as `micro` does, from parts that are rebalanced (ExDyna).

  The vector has up to 1,024 blocks, and a part is a run of consecutive blocks.
  At every step blocks may move between neighboring parts, so that all workers
  select about equally many elements. More workers than blocks are a
  `ValueError` in a step.

  Args:
    density: see `micro`. The paper's is 0.001.
    capacity: see `micro`.
  """
  return _by_threshold(ExDynaState, density, capacity, axis_name)


def _wanted(density: float, size: int) -> int:
  """Returns the number of elements to select of `size`, at least 1."""
  return max(1, int(density * size))


def _by_threshold(
  record: Any, density: float, capacity: float | None, axis_name: str
) -> Reducer:
  """Returns a reducer whose workers select by a threshold from their parts."""

  def slots(k, workers, size):
    return min(math.ceil(capacity * k / workers), size)

  def init(params):
    size = sum(leaf.size for leaf in flat.floats(params))
    return record(
      count=jnp.int32(0),
      threshold=jnp.float32(1 / (2 * math.sqrt(_wanted(density, size)))),
      selection=jnp.float32(0),
      overflow=jnp.float32(0),
      error=flat.zeros(params),
      **record.own(size),
    )

  def update(updates, state, params=None, **_):
    values, rebuild = flat.float32(updates)
    error, keep = flat.float32(state.error)
    values += error
    size, workers = values.size, lax.axis_size(axis_name)
    k = _wanted_by_all(density, size, workers)
    bounds, after = state.divide(size, axis_name)
    threshold = state.threshold * _factor(state, k)
    chosen = _chosen(values, threshold, bounds, state.count)
    number = jnp.sum(chosen, dtype=jnp.int32)
    numbers = worker_mesh.all_gather(number[None], axis_name)[:, 0]

    def summed(mine):
      # NaN compares false with any threshold, so it would never be selected.
      # Send NaN, so that every worker sees it.
      mine = jnp.where(jnp.all(jnp.isfinite(values)), mine, jnp.nan)
      return worker_mesh.in_parts(
        lambda x: typed_as(lax.psum(x, axis_name), x), mine
      )

    def exchange(indices):  # Indices of this worker's selection.
      union = worker_mesh.all_gather(indices, axis_name).reshape(-1)
      sums = summed(values.at[union].get(mode='fill', fill_value=0))
      mean = jnp.zeros_like(values).at[union].set(sums / workers, mode='drop')
      return mean, values.at[union].set(0, mode='drop')

    def selected(places):
      return exchange(jnp.nonzero(chosen, size=places, fill_value=size)[0])

    def largest(places):
      magnitudes = jnp.where(chosen, jnp.abs(values), -1)
      magnitudes, picked = lax.top_k(magnitudes, places)
      return exchange(jnp.where(magnitudes >= 0, picked, size))

    def everything():  # If messages would be longer than the vector.
      union = summed(chosen.astype(jnp.float32)) > 0
      mean = summed(jnp.where(union, values, 0)) / workers
      return mean, jnp.where(union, 0, values)

    longest, overflow = jnp.max(numbers), jnp.float32(0)
    if capacity is None:
      lengths = _lengths(k, workers, size)
      # Traffic counts the selected elements, not the padding of a message.
      ways = [
        annotated(
          functools.partial(selected, places),
          rate=float(places == lengths[0]),
          share=k / workers / places,
          scale='selection',
        )
        for places in lengths
      ]
      way = jnp.sum(jnp.array(lengths, jnp.int32) < longest)
      rest = annotated(everything, rate=float(not ways))
      mean, error = lax.switch(way, [*ways, rest])
    else:
      places = slots(k, workers, size)
      mean, error = largest(places)
      overflow = jnp.maximum(number - places, 0) / number
    new = state._replace(
      count=state.count + 1,
      threshold=threshold,
      selection=jnp.float32(longest * (workers / k)),
      overflow=overflow,
      error=keep(error),
      **after(numbers),
    )
    mean, state = skip_nonfinite(mean, new, state, ('selection', 'overflow'))
    return rebuild(mean), state

  def metrics(state):
    own = {} if capacity is None else {'overflow': state.overflow}
    return {'selection': state.selection, **own}

  return Reducer(
    init,
    update,
    metrics=metrics,
    resize=resizing.fields(threshold=resizing.first, error=resizing.mean),
    biased=True,
  )


def _wanted_by_all(density: float, size: int, workers: int) -> int:
  """Returns the number of elements that all workers together should select."""
  if workers > (k := _wanted(density, size)):
    raise ValueError(
      f'density={density} of {size} elements is {k}, fewer than one for each '
      f'of the {workers} workers; each sends at least one, so the threshold '
      'would rise without end'
    )
  return k


def _lengths(k: int, workers: int, size: int) -> list[int]:
  """Returns the lengths of messages that cost less than the whole vector."""
  lengths, places = [], math.ceil(k / workers)
  while workers * places < size:
    lengths.append(places)
    places *= 2
  return lengths


def _factor(state, k):
  """Returns MiCRO's factor for the threshold, to select about k elements.

  It changes the threshold by 0.5%, or by a quarter of this within about 10% of
  k. In that range the published code always raises the threshold, because its
  condition for `selected > k` always holds. Here the threshold is lowered if
  too few elements were selected, by a factor that the published code has but
  never uses.
  """
  ratio = jnp.sum(state.selected) / k
  return jnp.select(
    [state.count == 0, ratio > 1.1, ratio > 1, ratio > 0.909],
    [1.0, 1.005, 1.00125, 0.9987],
    0.995,
  )


def _chosen(values, threshold, bounds, count):
  """Returns which elements this worker selects from its part, bool [size].

  If none reaches the threshold, the worker selects a single element: its index
  in the part is the number of steps taken, modulo the length of the part.
  """
  start, stop = bounds
  indices = lax.iota(jnp.int32, values.size)
  inside = (indices >= start) & (indices < stop)
  chosen = inside & (jnp.abs(values) >= threshold)
  spare = start + count % jnp.maximum(stop - start, 1)
  return chosen | (inside & (indices == spare) & ~jnp.any(chosen))


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
