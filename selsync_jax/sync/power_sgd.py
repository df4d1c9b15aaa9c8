"""PowerSGD: gradients travel as products of two thin matrices.

References:
  Vogels, Karimireddy and Jaggi, NeurIPS 2019, Algorithms 1 and 2.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32

from selsync_jax.config import Count
from selsync_jax.sync import flat, resizing
from selsync_jax.sync.consensus import AXIS, consensus
from selsync_jax.sync.part import part
from selsync_jax.sync.reducers import skip_nonfinite
from selsync_jax.sync.transformation import Reducer


class PowerSGDState(NamedTuple):
  """State of `power_sgd`, one array for each matrix M [n, m].

  The next step of the power iteration starts from the last Q, which is equal on
  all workers. `error` is this worker's unsent rest of the gradient.
  """

  q: tuple[Float32[Array, 'm rank'], ...]
  error: tuple[Float32[Array, 'n m'], ...]


@part
def power_sgd(rank: Count, seed: int = 0, *, axis_name: str = AXIS) -> Reducer:
  """Replaces gradients by an approximation of their mean, of low rank.

  A leaf is reshaped to the matrix closest to a square: a convolution
  [3, 3, 32, 64] becomes 288 by 64. (The authors' code and PyTorch's hook
  separate the first axis, which holds the output channels there.) Leaves that
  would not shrink, such as biases, are sent uncompressed. Every step takes two
  all-reduces: of every P, then of every Q and the uncompressed leaves.

  The local optimizer supplies the momentum of Algorithm 2. Householder
  reflections make the columns orthogonal; they tolerate a gradient of lower
  rank better than the paper's Gram-Schmidt.

  Args:
    rank: r, the rank of the approximation, at least 1; the paper's are 1, 2,
      and 4.
    seed: the seed of the first Q.
  """

  def init(params):
    shapes = [shape for shape in _shapes(params, rank) if shape]
    key = jax.random.key(seed)
    return PowerSGDState(
      tuple(
        jax.random.normal(jax.random.fold_in(key, i), (m, rank))
        for i, (_, m) in enumerate(shapes)
      ),
      tuple(jnp.zeros(shape, jnp.float32) for shape in shapes),
    )

  def update(updates, state, params=None, **_):
    each = jax.tree.map
    matrices, others, rebuild = _split(updates, rank)
    # Algorithm 2, lines 5 to 8, with Algorithm 1 inside.
    deltas = each(jnp.add, matrices, state.error)
    q = each(_scaled, state.q)
    p = consensus(each(_product, deltas, q), axis_name=axis_name)
    p = each(lambda p: jnp.linalg.qr(_scaled(p))[0], p)
    own_q = each(lambda delta, p: _product(delta.T, p), deltas, p)
    q, others = consensus((own_q, others), axis_name=axis_name)
    error = each(lambda d, p, q: d - _product(p, q.T), deltas, p, own_q)
    mean = each(lambda p, q: _product(p, q.T), p, q), others
    mean, state = skip_nonfinite(mean, PowerSGDState(q, error), state)
    return rebuild(*mean), state

  resize = resizing.fields(q=resizing.first, error=resizing.mean)
  return Reducer(init, update, resize=resize, biased=True)


def _scaled(matrix):
  """Scales a matrix by a power of two, to a largest element near 1.

  The columns span the same space, and no square overflows.
  """
  _, exponent = jnp.frexp(jnp.max(jnp.abs(matrix)))
  return jnp.ldexp(matrix, -exponent)


def _product(a, b):
  # An accelerator's default precision would be too low for error feedback.
  return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _shapes(tree: Any, rank: int) -> list[tuple[int, int] | None]:
  """Returns each leaf's matrix shape; `None` if the leaf would not shrink."""

  def matrix(leaf):
    if not flat.is_float(leaf):
      return None
    divided = [
      (math.prod(leaf.shape[:i]), math.prod(leaf.shape[i:]))
      for i in range(1, len(leaf.shape))
    ]
    n, m = min(divided, key=sum, default=(0, 0))
    return (n, m) if rank * (n + m) < n * m else None

  return [matrix(leaf) for leaf in jax.tree.leaves(tree)]


def _split(tree: Any, rank: int) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
  """Splits a tree into float32 matrices and a vector of all other leaves.

  The third result is a function from these to a tree like `tree`.
  """
  leaves, treedef = jax.tree.flatten(tree)
  shapes = _shapes(tree, rank)
  pairs = list(zip(leaves, shapes, strict=True))
  matrices = tuple(x.astype(jnp.float32).reshape(s) for x, s in pairs if s)
  others, restore = flat.float32([leaf for leaf, shape in pairs if not shape])

  def rebuild(matrices, others):
    large, small = iter(matrices), iter(restore(others))
    return treedef.unflatten(
      next(large).astype(leaf.dtype).reshape(leaf.shape)
      if shape
      else next(small)
      for leaf, shape in pairs
    )

  return matrices, others, rebuild
