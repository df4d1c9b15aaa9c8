"""The relative gradient change, which SelSync compares with delta.

References:
  Tyagi and Swany, CLUSTER 2023, section `Relative gradient change`, equation 2.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
from jax.custom_batching import custom_vmap
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
    ewma: float32 [], the smoothed squared L2 norm E_i of the local gradient,
      divided by 4**exponent.
    exponent: int32 [], 0 unless E_i is near the limits of float32 or beyond.
    change: float32 [], the relative gradient change of the last update:
      at least 0; +inf without a past to compare with; NaN if the gradient was
      not finite.
  """

  count: Int32[Array, '']
  ewma: Float32[Array, '']
  exponent: Int32[Array, '']
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
  leaves the average as it was. The change is right for every finite gradient:
  squares that float32 cannot hold are scaled, as in the BLAS's nrm2 (Blue, `A
  Portable Fortran Program to Find the Euclidean Norm of a Vector`, 1978).

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
    integer, real = jnp.int32(0), jnp.float32(0)
    return MeasureState(integer, real, integer, real)

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
    x, k = squared_norm(grads)
    return updates, _next(state, x, k, a)

  return optax.GradientTransformationExtraArgs(init, update)


_SAFE = 45  # 2**30 squares of numbers in [2**-45, 2**45] have a float32 sum.


def _log2(x):
  """Returns floor(log2(x)) of a float32 x >= 0; -127 below the normal range."""
  return (lax.bitcast_convert_type(x, jnp.int32) >> 23) - 127


def _power(exponent):
  """Returns 2**exponent, exact; 0 below float32's range."""
  bits = jnp.clip(exponent + 127, 0, 254) << 23
  return lax.bitcast_convert_type(bits, jnp.float32)


def _plain_norm(grads):
  """Returns the squared L2 norm, and whether float32 holds it well."""
  x = optax.tree.norm(grads, squared=True)
  return x, jnp.abs(_log2(x)) <= 2 * _SAFE


def _zero(x):
  """Returns 0 for each x >= 0, with the varying axes of x."""
  return (x < 0).astype(jnp.int32)


def _scaled_norm(grads):
  """Returns x and k, with squared L2 norm x 4**k, and k = 0 if possible."""
  largest = optax.tree.norm(grads, ord='inf')
  k = _log2(largest)
  k = jnp.where((jnp.abs(k) <= _SAFE) | ~jnp.isfinite(largest), 0, k)
  scaled = jax.tree.map(lambda g: g * _power(-k), grads)
  x = optax.tree.norm(scaled, squared=True)
  return jnp.where(jnp.isfinite(largest), x, jnp.nan), k


@custom_vmap
def squared_norm(grads):
  """Returns the result of `_scaled_norm`.

  It reads the gradient only once if float32 holds the squares.
  """
  x, holds = _plain_norm(grads)
  return lax.cond(holds, lambda _: (x, _zero(x)), _scaled_norm, grads)


@squared_norm.def_vmap
def squared_norms(axis_size, in_batched, grads):
  """Returns the norms of all workers, with one predicate for all of them.

  With a predicate for each worker, vmap would compute both branches.
  """
  (batched,) = in_batched
  axes = jax.tree.map(lambda each: 0 if each else None, batched)
  over = functools.partial(jax.vmap, in_axes=(axes,), axis_size=axis_size)
  x, holds = over(_plain_norm)(grads)
  norms = lax.cond(
    jnp.all(holds),
    lambda _: (x, _zero(x)),
    over(_scaled_norm),
    grads,
  )
  return norms, (True, True)


def _next(state: MeasureState, x, k, a) -> MeasureState:
  """Returns the state after a gradient of squared norm x 4**k."""
  first = (state.count == 0) | ~jnp.isfinite(state.ewma)
  starts = first | (state.ewma == 0)
  exponent = jnp.where(starts, k, state.exponent)
  common = jnp.maximum(k, exponent)
  above = common - exponent
  past = state.ewma * _power(-2 * above)
  now = x * _power(2 * (k - common))
  ewma = jnp.where(starts, now, a * now + (1 - a) * past)
  moved = jnp.abs(ewma - past)
  change = jnp.where(
    starts,
    jnp.where(first | (moved > 0), jnp.inf, 0.0),
    moved / jnp.where(state.ewma == 0, 1.0, state.ewma),
  )
  change *= _power(above)
  change *= _power(above)  # Twice, because 4**above may overflow float32.
  log2 = _log2(ewma) + 2 * common
  exponent = jnp.where(jnp.abs(log2) <= 2 * _SAFE, 0, log2 // 2)
  ewma = ewma * _power(2 * (common - exponent))
  finite = jnp.isfinite(x)
  return MeasureState(
    count=state.count + 1,
    ewma=jnp.where(finite, ewma, state.ewma),
    exponent=jnp.where(finite, exponent, state.exponent),
    change=jnp.where(finite, change, jnp.nan),
  )
