"""Averages that a minority of wrong workers cannot move far.

Each worker combines a share of the elements: it receives this share from all
workers, and sends the result to all. That is as many bytes as a mean takes, and
N^2 distances. All iterations use only these distances, without a message.

Weights follow from the sent values alone, whatever a worker claims. But each
worker is trusted to combine its share as the program does.

References:
  Pillutla et al., `Robust Aggregation for Federated Learning`, IEEE Trans.
    Signal Processing 2022 (the smoothed Weiszfeld iteration).
  Karimireddy et al., `Learning from History for Byzantine Robust
    Optimization`, ICML 2021 (centered clipping).
  Yin et al., `Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates`, ICML 2018 (the trimmed mean).
"""

from collections.abc import Callable, Mapping
import math
from typing import Annotated, Any, NamedTuple

from annotated_types import Interval
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from selsync_jax.config import Count, Positive
from selsync_jax.sync import flat, worker_mesh
from selsync_jax.sync.averagers import Averager
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.part import part

Points = Float32[Array, 'points share']
Weights = Float32[Array, ' points']
Squares = Float32[Array, 'points points']
Half = Annotated[float, Interval(gt=0, lt=0.5)]

ITERATIONS = 32
"""Weiszfeld's iterations, which send nothing."""

SMOOTHING = 1e-3
"""The least distance that counts, in multiples of the median distance."""

_PARAMS = 'params'


class Least(NamedTuple):
  """The worker of the least weight in the last average, equal on all workers.

  `weight` is in multiples of 1/N. Before the first average, the worker is -1.
  """

  worker: Int32[Array, '']
  weight: Float32[Array, '']


class ClipState(NamedTuple):
  """State of `centered_clip`; `consensus` is the last common tree."""

  consensus: Any
  least: Least


@part
def geometric_median(*, axis_name: str = AXIS) -> Averager:
  """Gives every worker the point with the least sum of distances to all.

  If less than half of the workers send wrong values, the result stays close to
  the others' values. A worker with a value that is not finite has weight 0; if
  these are half of the workers, the result is not finite. If the tree has
  `params`, each of its entries has a separate median, because running
  statistics may be much larger than parameters.

  Rows report the worker with the least weight in `params`: `least_weighted` is
  its index, and `least_weight` its weight in multiples of 1/N.
  """

  def weigh(squares):
    # To the nearest workers that are more than half, with the worker itself.
    near = jnp.sort(squares, axis=1)[:, len(squares) // 2]
    usable = jnp.isfinite(4 * near)  # So two of these are at a finite distance.
    first = jnp.argmin(jnp.where(usable, near, jnp.inf))
    squares = jnp.where(usable[:, None] & usable[None], squares, 0)

    def move(_, weights):
      distances = _distances(squares, weights)
      least = SMOOTHING * _median(distances, usable) + 1e-30
      return _normalized(usable / jnp.maximum(distances, least))

    start = _normalized(1.0 * (usable & (squares[first] <= near[first])))
    return lax.fori_loop(0, ITERATIONS, move, start)

  def apply(tree, least):
    del least
    tree, weights = _combined(tree, _weighted(weigh, axis_name), axis_name)
    return tree, _least(weights)

  return Averager(_no_least, apply, remembers=False, metrics=_reported)


@part
def centered_clip(
  *, radius: Positive = 1.0, iterations: Count = 3, axis_name: str = AXIS
) -> Averager:
  """Moves the last consensus by the mean of changes of limited length.

  The center starts at the last consensus. In each iteration, it moves by the
  mean of the workers' differences from it, each clipped to the radius. The
  paper's radius is a length. Here it is relative to the median difference, so
  it suits any learning rate and period. With a radius that clips nothing, the
  result is the mean. A worker with a value that is not finite has weight 0. If
  the tree has `params`, its entries are averaged separately, because running
  statistics may be much larger than parameters.

  Rows report the least weight, as with `geometric_median`.

  Args:
    radius: the length to which differences are clipped, in multiples of their
      median length.
    iterations: L, the number of iterations; the paper's is 1.
  """

  def weigh(squares):
    consensus = jnp.arange(len(squares)) == 0
    usable = jnp.isfinite(4 * squares[0]) & ~consensus
    among = usable | consensus
    squares = jnp.where(among[:, None] & among[None], squares, 0)

    def move(_, weights):
      distances = _distances(squares, weights)
      longest = radius * _median(distances, usable)
      kept = jnp.minimum(1, longest / jnp.maximum(distances, 1e-30))
      moves = usable * kept / jnp.sum(usable)
      return weights * (1 - jnp.sum(moves)) + moves

    return lax.fori_loop(0, iterations, move, 1.0 * consensus)

  def apply(tree, state):
    combine = _weighted(weigh, axis_name)
    tree, weights = _combined(tree, combine, axis_name, state.consensus)
    return tree, ClipState(tree, _least(weights))

  return Averager(
    lambda tree: ClipState(tree, _no_least(tree)),
    apply,
    rebase=lambda tree, state: state._replace(consensus=tree),
    metrics=lambda state: _reported(state.least),
  )


@part
def trimmed_mean(drop: Half = 0.25, *, axis_name: str = AXIS) -> Averager:
  """Gives every worker the mean without the extremes, element by element.

  NaN counts as the largest value. The result is not finite where more workers
  than are dropped have such a value.

  Args:
    drop: the share of the workers whose values are dropped at each end, above 0
      and below 0.5. It is rounded up, but at least one worker remains.
  """

  def combine(points):
    count = len(points)
    dropped = min(math.ceil(drop * count), (count - 1) // 2)
    kept = jnp.sort(points, axis=0)[dropped : count - dropped]
    return jnp.mean(kept, axis=0), jnp.ones(count)

  return Averager(
    lambda tree: (),
    lambda tree, state: (_combined(tree, combine, axis_name)[0], state),
    remembers=False,
  )


def _combined(
  tree: Any,
  combine: Callable[[Points], tuple[Float32[Array, ' share'], Weights]],
  axis_name: str,
  consensus: Any = None,
) -> tuple[Any, Weights]:
  """Returns the combination of the workers' trees, and their weights.

  Args:
    tree: this worker's tree.
    combine: combines a share of the elements of all points. These are the
      workers' trees, after the consensus if one is given.
    axis_name: the mapped axis.
    consensus: a tree that all workers have.
  """
  if isinstance(tree, Mapping) and _PARAMS in tree:
    found = {
      name: _combined(entry, combine, axis_name, consensus and consensus[name])
      for name, entry in tree.items()
    }
    return {k: each for k, (each, _) in found.items()}, found[_PARAMS][1]
  workers = lax.axis_size(axis_name)
  values, rebuild = flat.float32(tree)
  if not values.size:
    return tree, jnp.ones(workers)

  def shares(vector):
    padded = jnp.pad(vector, (0, -vector.size % workers))
    return padded.reshape(workers, -1)

  points = worker_mesh.in_parts(
    lambda part: lax.all_to_all(part, axis_name, 0, 0, tiled=True),
    shares(values),
  )
  if consensus is not None:
    common = shares(flat.float32(consensus)[0])[lax.axis_index(axis_name)]
    points = jnp.concatenate([common[None], points])
  mine, weights = combine(points)
  whole = worker_mesh.all_gather(mine, axis_name).reshape(-1)
  return rebuild(whole[: values.size]), weights[-workers:]


def _weighted(weigh: Callable[[Squares], Weights], axis_name: str) -> Any:
  """Returns the combination with weights that follow from squared distances."""

  def combine(points):
    # Every pair separately: a difference of large sums would be rounded.
    parts = jnp.sum((points[:, None] - points[None]) ** 2, axis=-1)
    weights = weigh(lax.psum(parts, axis_name))
    center = points[jnp.argmax(weights)]
    moves = jnp.where(weights[:, None] > 0, points - center[None], 0)
    return center + jnp.sum(weights[:, None] * moves, axis=0), weights

  return combine


def _distances(squares: Squares, weights: Weights) -> Weights:
  """Returns the points' distances from their weighted mean."""
  far = jnp.sum(squares * weights[None], axis=1)
  return jnp.sqrt(jnp.maximum(far - jnp.sum(weights * far) / 2, 0))


def _median(distances: Weights, usable: Bool[Array, ' points']) -> Array:
  return jnp.nanmedian(jnp.where(usable, distances, jnp.nan))


def _normalized(weights: Weights) -> Weights:
  return weights / jnp.sum(weights)


def _no_least(tree: Any) -> Least:
  del tree
  return Least(jnp.int32(-1), jnp.float32(1))


def _least(weights: Weights) -> Least:
  worker = jnp.argmin(weights)
  weight = len(weights) * weights[worker]
  return Least(worker.astype(jnp.int32), weight)


def _reported(least: Least) -> dict[str, Any]:
  return {'least_weighted': least.worker, 'least_weight': least.weight}
