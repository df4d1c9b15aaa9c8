"""Runs workers one after another on one device, between their collectives.

Under `vmap`, all workers need their activations at the same time, and a
convolution with a kernel per worker becomes a grouped one, which is slow on a
CPU. In turn, each worker needs only its own memory and time.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.custom_batching import sequential_vmap

from selsync_jax import traced


def in_turn(fn: Callable[..., Any]) -> Callable[..., Any]:
  """Returns `fn` of one worker so that `vmap` loops over the workers.

  `fn` must not have collectives.
  """
  return sequential_vmap(in_loop(fn))


def in_loop(fn: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a version of `fn` that is also fast inside a loop.

  XLA brings convolutions into the layout of its fast kernels, but on a CPU only
  outside loops. Inside a loop, the gradient of a kernel takes 20 times as long.
  So this function sets the layout itself.
  """

  def canonical(*args):
    if jax.default_backend() != 'cpu':
      return fn(*args)
    program, out = jax.make_jaxpr(fn, return_shape=True)(*args)
    leaves = traced.run(program, jax.tree.leaves(args), _canonical)
    return jax.tree.unflatten(jax.tree.structure(out), leaves)

  return canonical


def _canonical(eqn: Any, values: list[Any]) -> list[Any] | None:
  """Evaluates convolutions, also inside `jax.jit`."""
  if traced.name(eqn) == 'conv_general_dilated':
    return [_convolution(*values, **eqn.params)]
  if traced.name(eqn) == 'jit':
    return traced.run(eqn.params['jaxpr'], values, _canonical)
  return None


def _convolution(
  lhs: jax.Array,
  rhs: jax.Array,
  *,
  dimension_numbers: lax.ConvDimensionNumbers,
  **params: Any,
) -> jax.Array:
  """Convolves in the layout [N, ..., C] by [..., I, O] to [N, ..., C]."""
  (batch, features, *space), (outputs, inputs, *window), (n, c, *out) = (
    dimension_numbers
  )
  last = lhs.ndim - 1
  data, inside = (0, last, *range(1, last)), tuple(range(last - 1))
  result = lax.conv_general_dilated(
    lax.transpose(lhs, (batch, *space, features)),
    lax.transpose(rhs, (*window, inputs, outputs)),
    dimension_numbers=lax.ConvDimensionNumbers(
      data, (last, last - 1, *inside), data
    ),
    **params,
  )
  order = (n, *out, c)
  return lax.transpose(result, [order.index(i) for i in range(lhs.ndim)])
