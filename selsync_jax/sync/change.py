"""The relative gradient change, which SelSync compares with delta.

References:
  Tyagi and Swany, CLUSTER 2023, section `Relative gradient change`, equation 2.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32
import optax

from selsync_jax.sync.consensus import AXIS

SMOOTHING = 0.16
"""The weight of the newest gradient: the paper's N / 100 for its 16 workers.

N / 100 is too small for few workers, because the smoothing also limits how
large a change can be: see docs/how-it-decides.md.
"""


class MeasureState(NamedTuple):
  """A worker's record of its gradients.

  Attributes:
    count: int32 [], the number of gradients seen.
    ewma: float32 [], the smoothed squared L2 norm E_i of the local gradient.
    change: float32 [], the relative gradient change of the last update:
      at least 0; +inf without a past to compare with; NaN if the gradient was
      not finite.
  """

  count: Int32[Array, '']
  ewma: Float32[Array, '']
  change: Float32[Array, '']


def measure(
  smoothing: float | jax.Array | None = SMOOTHING, *, axis_name: str = AXIS
) -> optax.GradientTransformationExtraArgs:
  r"""Measures the relative gradient change; sends nothing, changes nothing.

  With :math:`x_i` the squared L2 norm of the local gradient over the whole
  tree and :math:`a` the smoothing factor (equation 2, with the expectation
  realized by a recursive average):

  .. math::
    E_0 = x_0, \quad E_i = a x_i + (1 - a) E_{i-1}, \quad
    \Delta_i = |E_i - E_{i-1}| / E_{i-1}

  The first gradient has no past: its change is infinite, and the average starts
  with it. The same holds after gradients that were all zero or not finite; zero
  after zero is no change. A gradient that is not finite has change NaN and
  leaves the average as it was. The squares are float32: a norm above 1.8e19
  counts as not finite, and elements below 1e-19 count as zero.

  The state has no derivative, so a step that measures can be differentiated.

  Args:
    smoothing: the factor :math:`a` in (0, 1], else a `ValueError`; `None` is
      the paper's N / 100 for N workers, at most 1. With few workers, N / 100
      reacts slowly.

  Returns:
    A transformation with state `MeasureState` that passes updates through.
  """
  if isinstance(smoothing, int | float) and not 0 < smoothing <= 1:
    raise ValueError(f'smoothing must be in (0, 1], got {smoothing}')

  def init(params):
    return MeasureState(jnp.int32(0), jnp.float32(0), jnp.float32(0))

  def update(updates, state, params=None, **_):
    if not jax.tree.leaves(updates):
      raise ValueError(
        'the gradient that the trigger measures has no arrays; put the trigger '
        'before the mask: optax.chain(trigger, optax.masked(...))'
      )
    a = smoothing
    if a is None:
      a = min(lax.axis_size(axis_name) / 100, 1.0)
    grads = lax.stop_gradient(optax.tree.cast(updates, jnp.float32))
    return updates, _next(state, optax.tree.norm(grads, squared=True), a)

  return optax.GradientTransformationExtraArgs(init, update)


def _next(state: MeasureState, x, a) -> MeasureState:
  """Returns the state after a gradient of squared norm x."""
  past = state.ewma
  first = (state.count == 0) | ~jnp.isfinite(past)
  starts = first | (past == 0)
  ewma = jnp.where(starts, x, a * x + (1 - a) * past)
  moved = jnp.abs(ewma - past)
  change = jnp.where(
    starts,
    jnp.where(first | (moved > 0), jnp.inf, 0.0),
    moved / jnp.where(past == 0, 1.0, past),
  )
  finite = jnp.isfinite(x)
  return MeasureState(
    count=state.count + 1,
    ewma=jnp.where(finite, ewma, past),
    change=jnp.where(finite, change, jnp.nan),
  )
