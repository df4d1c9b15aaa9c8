"""Reducers: optax transformations that communicate gradients."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32
import optax

from selsync_jax.config import Positive
from selsync_jax.sync import flat, resizing, wires
from selsync_jax.sync.consensus import AXIS, consensus
from selsync_jax.sync.part import part
from selsync_jax.sync.transformation import Reducer


@part
def no_reduction() -> Reducer:
  """Leaves gradients local."""
  identity = optax.with_extra_args_support(optax.identity())
  return Reducer(*identity, reduces=False, every_step=False)


@part
def all_reduce(*, axis_name: str = AXIS) -> Reducer:
  """Replaces gradients by their mean over workers, at every step."""

  def update(updates, state, params=None, **_):
    return consensus(updates, axis_name=axis_name), state

  return Reducer(lambda params: optax.EmptyState(), update)


@part
def int8(*, axis_name: str = AXIS) -> Reducer:
  """Replaces gradients by their mean in int8, at every step.

  As with the wire `int8`, each 256 elements have a float32 scale, and both
  stages have error feedback: the mean over workers of gradients and error
  memories equals the result plus the mean of the new memories, up to float32's
  rounding.

  The error stays bounded. If no element of a gradient exceeds G, no element of
  an error memory exceeds (N + 1 + (N - 1) / 253) / 252 G, up to float32's
  rounding. For four workers, that is 0.02 G. The error of the sum of all means
  has the same bound.
  """

  def mean(values, error):
    workers = lax.axis_size(axis_name)
    code, left = wires.encoded(values + error, wires.INT8, workers)
    reduced, own = wires.exchanged(code, wires.INT8, axis_name=axis_name)
    return reduced[: values.size], left + own[: values.size]

  return error_feedback(mean)


class ErrorState(NamedTuple):
  """The part of earlier gradients that `error_feedback` has not sent."""

  error: list[Float32[Array, '...']]  # `flat.parts` of the unsent rest.


def error_feedback(
  mean: Callable[[Any, Any], tuple[Any, Any]], biased: bool = False
) -> Reducer:
  """Returns a reducer that sends a part of the gradient now, the rest later.

  `mean(values, error)`, both float32 [size], returns the mean over workers and
  this worker's unsent rest. See `Reducer` for the other arguments.
  """

  def init(params):
    return ErrorState(flat.zeros(params))

  def update(updates, state, params=None, **_):
    values, rebuild = flat.float32(updates)
    error, keep = flat.float32(state.error)
    reduced, error = mean(values, error)
    reduced, state = skip_nonfinite(reduced, ErrorState(keep(error)), state)
    return rebuild(reduced), state

  resize = resizing.fields(error=resizing.mean)
  return Reducer(init, update, resize=resize, biased=biased)


def skip_nonfinite(
  mean: Any, new: Any, old: Any, reports: Sequence[str] = ()
) -> tuple[Any, Any]:
  """Keeps values that are not finite out of a state.

  An error memory would send them again at every step. If all of `mean` is
  finite, the results are `mean` and the new state. Otherwise they are NaN
  everywhere, which every worker sees, and the old state with new values of the
  fields `reports`, which describe the traffic.
  """
  finite = jnp.all(
    jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(mean)])
  )
  mean = jax.tree.map(lambda leaf: jnp.where(finite, leaf, jnp.nan), mean)
  if reports:
    old = old._replace(**{name: getattr(new, name) for name in reports})
  return mean, optax.tree.where(finite, new, old)


@part
def at_sync(reducer: Reducer) -> Reducer:
  """Reduces only at synchronizations, inside one `lax.cond`.

  `at_sync(all_reduce())` with the trigger `selsync(delta)` is the paper's
  gradient aggregation.

  Args:
    reducer: the reducer to run at synchronizations. By itself it must reduce at
      every step.
  """
  traits = reducer.traits
  if not traits.reduces:
    raise ValueError(f'{reducer} reduces nothing, even at synchronizations')
  if not traits.every_step:
    raise ValueError(f'{reducer} reduces at synchronizations already')
  if traits.consecutive:
    raise ValueError(
      f'{reducer} compares the gradients of consecutive steps, so it cannot '
      'run at synchronizations alone'
    )

  def update(updates, state, params=None, *, sync: Any, **extra_args):
    return lax.cond(
      sync,
      lambda u, s: reducer.update(u, s, params, **extra_args),
      lambda u, s: (u, s),
      updates,
      state,
    )

  new = reducer._replace(update=update)  # pyrefly: ignore
  new.traits = traits._replace(every_step=False)
  return new


@part
def clipped(norm: Positive, reducer: Reducer) -> Reducer:
  """Clips each worker's gradient before it is reduced.

  One worker's outlier then moves the mean by at most `norm / N`. The trigger
  measures the gradient before the clip.

  Args:
    norm: the largest global L2 norm of a worker's gradient.
    reducer: the reducer that gets the clipped gradient. It must reduce at every
      step; the optimizer can clip gradients that stay local.
  """
  if not reducer.traits.reduces:
    raise ValueError(f'{reducer} reduces nothing: clip in the optimizer')
  if not reducer.traits.every_step:
    raise ValueError(
      f'{reducer} leaves gradients local between synchronizations: clip in the '
      'optimizer, or inside, as at_sync(clipped(...))'
    )
  clip = optax.clip_by_global_norm(norm)

  def update(updates, state, params=None, **extra_args):
    updates, _ = clip.update(updates, optax.EmptyState())
    return reducer.update(updates, state, params, **extra_args)

  return reducer._replace(update=update)
