"""Workers one after another on one device, where they need no other worker.

Under `vmap`, all workers need their activations at the same time, and a
convolution with a kernel per worker becomes a grouped one, which is slow on a
CPU. One at a time, each needs only the memory and the time that it needs alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.custom_batching import sequential_vmap
from jax.extend import core
from jax.extend.core.primitives import conv_general_dilated_p


def in_turn(fn: Callable[..., Any]) -> Callable[..., Any]:
  """Returns `fn` of one worker so that `vmap` loops over the workers.

  It must not have collectives. XLA brings convolutions into the layout of its
  fast kernels, but on a CPU only outside loops. Inside one, the gradient of a
  kernel takes 20 times as long, so they get that layout here.
  """

  def canonical(*args):
    if jax.default_backend() != 'cpu':
      return fn(*args)
    closed, out = jax.make_jaxpr(fn, return_shape=True)(*args)
    leaves = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(out), leaves)

  return sequential_vmap(canonical)


def _evaluate(jaxpr: core.Jaxpr, consts: Sequence[Any], args: Sequence[Any]):
  """Evaluates a jaxpr as `jax.core.eval_jaxpr` does, but for convolutions."""
  names = (*jaxpr.constvars, *jaxpr.invars)
  env: dict[Any, Any] = dict(zip(names, (*consts, *args), strict=True))

  def read(atom):
    return atom.val if isinstance(atom, core.Literal) else env[atom]

  for eqn in jaxpr.eqns:
    values = [read(atom) for atom in eqn.invars]
    if eqn.primitive is conv_general_dilated_p:
      results = [_convolution(*values, **eqn.params)]
    elif eqn.primitive.name in ('jit', 'pjit'):
      inner = eqn.params['jaxpr']
      results = _evaluate(inner.jaxpr, inner.consts, values)
    else:
      params = eqn.primitive.get_bind_params(eqn.params)
      results = eqn.primitive.bind(*values, **params)
      if not eqn.primitive.multiple_results:
        results = [results]
    env.update(zip(eqn.outvars, results, strict=True))
  return [read(atom) for atom in jaxpr.outvars]


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
  result = conv_general_dilated_p.bind(
    lax.transpose(lhs, (batch, *space, features)),
    lax.transpose(rhs, (*window, inputs, outputs)),
    dimension_numbers=lax.ConvDimensionNumbers(
      data, (last, last - 1, *inside), data
    ),
    **params,
  )
  order = (n, *out, c)
  return lax.transpose(result, [order.index(i) for i in range(lhs.ndim)])
