r"""Federated dynamic averaging: synchronize when replicas have drifted apart.

The trigger measures the variance of the parameters over the N workers. With
the drift :math:`u_k` of worker k since the last synchronization, it is

.. math::
  \frac{1}{N} \sum_k \|u_k\|^2 - \|\bar u\|^2

The first term is a mean of scalars. The second would need the mean of vectors
as large as the model, so it is bounded from below; the estimate of the variance
is then too large rather than too small.

The estimate travels in one small all-reduce, which is also the vote, because
its result is the same on all workers. If the drift of one worker is not finite,
neither is the result, which is a veto.

Unlike other triggers, this one decides after the local update. In a custom
training loop, put it last in the chain and pass the parameters:

Example:
  >>> import jax, jax.numpy as jnp, optax
  >>> import selsync_jax as ss
  >>> tx = optax.chain(optax.sgd(1.0), ss.fda(theta=1.0))
  >>> def step(w, state, grad):
  ...   updates, state = tx.update(grad, state, w)
  ...   w = optax.apply_updates(w, updates)
  ...   sync = ss.decision(state)
  ...   return ss.synchronize(sync, w), state, sync
  >>> step = jax.vmap(step, axis_name=ss.AXIS)
  >>> w = jnp.zeros(2)
  >>> state = jax.vmap(tx.init)(w)
  >>> for _ in range(3):
  ...   w, state, sync = step(w, state, jnp.array([0., -1.]))
  ...   print(w, sync)
  [0. 1.] [False False]
  [1. 1.] [ True  True]
  [1. 2.] [False False]

References:
  Theologitis et al., `Communication-Efficient Distributed Deep Learning via
  Federated Dynamic Averaging`, EDBT 2025: algorithm 1, `LinearFDA` and
  `SketchFDA`.
"""

from collections.abc import Callable
import math
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Interval
import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32
import optax

from selsync_jax.config import Count, Threshold
from selsync_jax.sync import flat
from selsync_jax.sync.agreement import check_whole
from selsync_jax.sync.consensus import AXIS, check_mapped
from selsync_jax.sync.part import part
from selsync_jax.sync.replicas import mix
from selsync_jax.sync.transformation import Trigger

Variant = Literal['naive', 'linear', 'sketch']


class FDAState(NamedTuple):
  """State of `fda`; equal on all workers.

  Attributes:
    reference: `flat.parts` of the parameters after the last synchronization.
    direction: the unit vector along the last change of `reference`, in the same
      shapes; zero before the first change; empty unless the variant is linear.
    started: bool [], whether an update has set `reference`.
    estimate: float32 [], the estimated variance of the parameters.
    sync: bool [], whether this step synchronizes.
    safe: bool [], whether every worker's drift is finite.
  """

  reference: list[Float32[Array, '...']]
  direction: list[Float32[Array, '...']]
  started: Bool[Array, '']
  estimate: Float32[Array, '']
  sync: Bool[Array, '']
  safe: Bool[Array, '']


class Bound(NamedTuple):
  """A lower bound of the squared norm of the mean drift."""

  summary: Callable[[Any, Any], Any]  # From a worker's drift and the direction.
  bound: Callable[[Any], Any]  # From the mean of all summaries.


NAIVE = Bound(lambda drift, direction: jnp.zeros(0), lambda mean: 0)
LINEAR = Bound(
  lambda drift, direction: jnp.sum(direction * drift)[None],
  lambda mean: jnp.square(mean[0]),
)


def _sketched(depth: int, width: int, seed: int) -> Bound:
  # The approximate relative error of a row's estimate, 6% by default.
  epsilon = 1 / math.sqrt(width)
  return Bound(
    lambda drift, direction: jnp.ravel(sketch(drift, depth, width, seed)),
    lambda mean: squared_norm(mean.reshape(depth, width)) / (1 + epsilon),
  )


def sketch(
  vector: Float32[Array, ' size'], depth: int, width: int, seed: int
) -> Float32[Array, 'depth width']:
  """Returns the AMS sketch of a vector, in at most 32 rows.

  A sketch is linear: the mean of the workers' sketches is the sketch of their
  mean. Every element is added, with a random sign, to one of the `width`
  numbers of each row. The seed must be the same on all workers.

  Elements are placed in chunks of `width`, and each chunk is rotated by a
  random offset. So no two elements of a chunk collide, and elements of two
  chunks collide with probability `1 / width`. A sketch is then a sum without
  scattered writes, in an order that is fixed on every device.

  References:
    Alon, Matias and Szegedy, `The Space Complexity of Approximating the
    Frequency Moments`, STOC 1996; Cormode and Garofalakis, `Sketching Streams
    Through the Net`, VLDB 2005.
  """
  chunks = -(-vector.size // width)
  padded = jnp.pad(vector, (0, chunks * width - vector.size))
  padded = padded.reshape(chunks, width)
  # The golden ratio's bits separate the streams of different seeds.
  start = mix(jnp.uint32(seed) * jnp.uint32(0x9E3779B1) + 1)
  # An element's signs are the bits of one 32-bit hash.
  bits = mix(lax.iota(jnp.uint32, padded.size) + start).reshape(padded.shape)
  offsets = mix(lax.iota(jnp.uint32, depth * chunks) ^ mix(start))
  offsets = (offsets % width).astype(jnp.int32).reshape(depth, chunks, 1)

  def row(index, offset):
    signed = jnp.where((bits >> index) & 1 == 1, padded, -padded)
    columns = (lax.iota(jnp.int32, width)[None] + offset) % width
    return jnp.sum(jnp.take_along_axis(signed, columns, axis=1), axis=0)

  return jax.vmap(row)(lax.iota(jnp.uint32, depth), offsets)


def squared_norm(sketch: Float32[Array, 'depth width']) -> Float32[Array, '']:
  """Estimates the squared L2 norm of the vector that was sketched.

  The estimate of a row is unbiased, with variance at most `2 / width` times its
  square, and the median over rows is rarely far off.
  """
  return jnp.median(jnp.sum(jnp.square(sketch), axis=1))


@part
def fda(
  theta: Threshold,
  variant: Variant = 'linear',
  *,
  depth: Annotated[int, Interval(ge=1, le=32)] = 5,
  width: Count = 250,
  seed: int = 0,
  axis_name: str = AXIS,
) -> Trigger:
  """Synchronizes when the variance of the parameters exceeds theta.

  Its state is `FDAState`.

  Args:
    theta: the threshold, at least 0, in the square of the parameters' unit. The
      paper finds that it should grow linearly with their number.
    variant: the lower bound of the squared norm of the workers' mean change.
      `naive`: 0. `linear`: the square of its part along the last change of the
      common parameters. `sketch`: an estimate from AMS sketches, which is a
      bound with high probability.
    depth: the number of rows in a sketch, from 1 to 32; the paper's is 5.
    width: the number of columns in a sketch; the paper's is 250.
    seed: the seed of the sketches.
  """
  sketched = _sketched(depth, width, seed)
  variants = {'naive': NAIVE, 'linear': LINEAR, 'sketch': sketched}
  lower = variants[variant]

  def init(params):
    direction = flat.zeros(params) if variant == 'linear' else []
    no = jnp.bool(False)
    return FDAState(flat.parts(params), direction, no, jnp.float32(0), no, no)

  def update(updates, state, params=None, *, threshold=theta, **extra_args):
    if params is None:
      raise ValueError('fda needs params: tx.update(updates, state, params)')
    check_mapped(axis_name)
    check_whole(params, axis_name)
    reference, direction = _renewed(
      state, flat.parts(params), extra_args.get('synced', state.sync)
    )
    moved = optax.apply_updates(params, extra_args.get('applied', updates))
    trees = moved, reference, direction
    end, start, along = (flat.float32(tree)[0] for tree in trees)
    drift = end - start
    # Subtract before the all-reduce, so that its result alone decides.
    own = jnp.sum(jnp.square(drift)) - threshold
    summary = jnp.append(own, lower.summary(drift, along))
    mean = lax.psum(summary, axis_name) / lax.axis_size(axis_name)
    excess, safe = mean[0] - lower.bound(mean[1:]), mean[0] < jnp.inf
    measured = reference, direction, jnp.bool(True), excess + threshold
    return updates, FDAState(*measured, safe & (excess > 0), safe)

  return Trigger(
    init,
    update,
    sees_update=True,
    needs_consensus=True,
    threshold=float(theta),
    compared=lambda state: state.estimate,
  )


def _renewed(state: FDAState, common, synced):
  """Returns reference and direction, updated if `common` is a new consensus."""
  where = optax.tree.where
  reference = where(synced | ~state.started, common, state.reference)
  if not state.direction:
    return reference, state.direction
  change = optax.tree.sub(common, state.reference)
  norm = optax.tree.norm(change)
  unit = optax.tree.scale(1 / jnp.where(norm > 0, norm, 1), change)
  return reference, where(synced & state.started, unit, state.direction)
