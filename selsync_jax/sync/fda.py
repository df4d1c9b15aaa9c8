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

Unlike other triggers, this one decides after the local update. In your own
chain it stands last and receives the parameters:

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
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32
import optax

from selsync_jax.config import Count
from selsync_jax.config import Threshold
from selsync_jax.sync import flat
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.part import part
from selsync_jax.sync.sketch import MAX_DEPTH
from selsync_jax.sync.sketch import sketch
from selsync_jax.sync.sketch import squared_norm
from selsync_jax.sync.traffic import Collective
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


class Estimator(NamedTuple):
  """An estimator of the variance.

  Attributes:
    summary: `summary(drift, direction)`, a vector whose first element is the
      squared norm of a worker's drift.
    estimate: `estimate(mean)`, the variance from the mean of all summaries.
    size: the number of elements in a summary.
  """

  summary: Callable[[Any, Any], Any]
  estimate: Callable[[Any], Any]
  size: int


def _squared(drift):
  return jnp.sum(jnp.square(drift))


NAIVE = Estimator(
  lambda drift, direction: _squared(drift)[None], lambda mean: mean[0], 1
)
LINEAR = Estimator(
  lambda drift, direction: jnp.stack(
    [_squared(drift), jnp.sum(direction * drift)]
  ),
  lambda mean: mean[0] - jnp.square(mean[1]),
  2,
)


def _sketched(depth: int, width: int, seed: int) -> Estimator:
  # The approximate relative error of a row's estimate, 6% by default.
  epsilon = 1 / math.sqrt(width)

  def summary(drift, direction):
    del direction
    rows = sketch(drift, depth, width, seed)
    return jnp.concatenate([_squared(drift)[None], jnp.ravel(rows)])

  def estimate(mean):
    rows = mean[1:].reshape(depth, width)
    return mean[0] - squared_norm(rows) / (1 + epsilon)

  return Estimator(summary, estimate, 1 + depth * width)


@part
def fda(
  theta: Threshold,
  variant: Variant = 'linear',
  *,
  depth: Annotated[int, Interval(ge=1, le=MAX_DEPTH)] = 5,
  width: Count = 250,
  seed: int = 0,
  axis_name: str = AXIS,
) -> Trigger:
  r"""Synchronizes when the variance of the parameters exceeds theta.

  Args:
    theta: the threshold, at least 0, in the square of the parameters' unit. The
      paper finds that it should grow linearly with their number.
    variant: the lower bound of :math:`\|\bar u\|^2`. `naive`: 0. `linear`:
      :math:`\langle \xi, \bar u \rangle^2` with the unit vector :math:`\xi`
      along the last change of the common parameters. `sketch`: an estimate from
      AMS sketches, which is a bound with high probability.
    depth: the number of rows in a sketch, from 1 to 32; the paper's is 5.
    width: the number of columns in a sketch; the paper's is 250.
    seed: the seed of the sketches.
    axis_name: the mapped axis.

  Returns:
    A transformation with state `FDAState`.
  """
  variants = {
    'naive': NAIVE,
    'linear': LINEAR,
    'sketch': _sketched(depth, width, seed),
  }
  estimator = variants[variant]

  def init(params):
    direction = flat.zeros(params) if variant == 'linear' else []
    no = jnp.bool(False)
    return FDAState(flat.parts(params), direction, no, jnp.float32(0), no, no)

  def update(updates, state, params=None, *, threshold=theta, **extra_args):
    if params is None:
      raise ValueError('fda needs params: tx.update(updates, state, params)')
    reference, direction = _renewed(
      state, flat.parts(params), extra_args.get('synced', state.sync)
    )
    moved = optax.apply_updates(params, extra_args.get('applied', updates))
    trees = moved, reference, direction
    end, start, along = (flat.float32(tree)[0] for tree in trees)
    excess, safe = _excess(estimator, end - start, along, threshold, axis_name)
    measured = reference, direction, jnp.bool(True), excess + threshold
    return updates, FDAState(*measured, safe & (excess > 0), safe)

  def sends(params, workers):
    del params, workers
    return (Collective('all_reduce', 4 * estimator.size, 'step'),)

  return Trigger(
    init,
    update,
    sends,
    sees_update=True,
    needs_consensus=True,
    threshold=float(theta),
  )


def _excess(estimator, drift, direction, threshold, axis_name):
  """Returns estimate minus threshold, and whether every drift is finite."""
  # Subtract before the all-reduce, so that its result alone decides.
  summary = estimator.summary(drift, direction).at[0].add(-threshold)
  mean = lax.psum(summary, axis_name) / lax.axis_size(axis_name)
  return estimator.estimate(mean), mean[0] < jnp.inf


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
