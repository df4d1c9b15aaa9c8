"""A mean that limits the influence of diverging workers.

Reconstructed from the paper's abstract and from memory; the paper could not be
read. There, each layer has its own norms; here the whole tree has one.

References:
  Cheng et al., `EDiT: A Local-SGD-Based Efficient Distributed Training Method
    for Large Language Models`, ICLR 2025 (arXiv 2412.07210), the penalty on
    pseudo-gradients.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge
import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32
import optax

from selsync_jax.config import Positive, Share
from selsync_jax.sync import flat, resizing
from selsync_jax.sync.averagers import Averager
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.part import part
from selsync_jax.sync.wires import FLOAT32, Wire

Warmup = Annotated[int, Ge(2)]
_PARAMS = 'params'


class RobustState(NamedTuple):
  """State of `robust_mean`.

  `consensus` is the last common tree. `level` and `variance` are the mean and
  variance of the norms of this worker's changes, over `rounds`. `consensus` and
  `wire` are equal on all workers.
  """

  consensus: Any
  level: Float32[Array, '']
  variance: Float32[Array, '']
  rounds: Int32[Array, '']
  wire: Any


@part
def robust_mean(
  *,
  z: Positive = 3.0,
  clip: Positive = 10.0,
  decay: Share = 0.98,
  warmup: Warmup = 10,
  wire: Wire = FLOAT32,
  axis_name: str = AXIS,
) -> Averager:
  """Averages changes with less weight on long ones and none on outliers.

  A worker's change is its tree minus the last common tree. The weight of a
  change is the softmax, over workers, of its negative norm. The weight is 0 if
  the norm is more than `z` standard deviations above the worker's mean norm, or
  not finite. If all weights are 0, every worker returns to the last common
  tree. The mean change is clipped. If the tree has `params`, only these are
  measured, weighted and clipped: running statistics have a plain mean.

  Args:
    z: standard deviations above the mean at which a change is an outlier.
    clip: the largest norm of the mean change.
    decay: the decay of the mean and variance of the norms, in [0, 1); at first
      they are plain averages.
    warmup: the number of a worker's first finite norms that are never outliers;
      at least 2, since one norm has no deviation.
    wire: the encoding of the mean.
  """

  def init(tree):
    zero = jnp.float32(0)
    return RobustState(tree, zero, zero, jnp.int32(0), wire.init(tree))

  def apply(tree, state):
    before = state.consensus
    norm = _distance(before, tree)
    high = norm > state.level + z * jnp.sqrt(state.variance)
    usual = jnp.isfinite(norm) & ~(high & (state.rounds >= warmup))
    norms = lax.all_gather(jnp.where(usual, norm, jnp.inf), axis_name)
    weights = jnp.where(norms < jnp.inf, jax.nn.softmax(-norms), 0)
    own = len(norms) * weights[lax.axis_index(axis_name)]
    tree = optax.tree.where(usual, _moved(before, tree, own), before)
    tree, sent = wire.mean(tree, state.wire)
    length = _distance(before, tree)
    shorter = jnp.minimum(1, clip / jnp.where(length > 0, length, 1))
    tree = _moved(before, tree, shorter)
    old = jnp.minimum(decay, state.rounds / (state.rounds + 1))
    level = old * state.level + (1 - old) * norm
    variance = old * state.variance + (1 - old) * (norm - level) ** 2
    level = jnp.where(usual, level, state.level)
    variance = jnp.where(usual, variance, state.variance)
    sent = wire.rebase(tree, sent)
    rounds = state.rounds + usual
    return tree, RobustState(tree, level, variance, rounds, sent)

  def rebase(tree, state):
    return state._replace(consensus=tree, wire=wire.rebase(tree, state.wire))

  return Averager(
    init,
    apply,
    rebase=rebase,
    resize=resizing.fields(consensus=resizing.first, wire=wire.resize),
  )


def _distance(tree: Any, other: Any) -> Float32[Array, '']:
  """Returns the norm of the difference, over floating-point parameters."""
  start, end = (flat.parts(_parameters(each)) for each in (tree, other))
  return optax.tree.norm(optax.tree.sub(end, start)).astype(jnp.float32)


def _parameters(tree: Any) -> Any:
  has_others = isinstance(tree, Mapping) and _PARAMS in tree
  return tree[_PARAMS] if has_others else tree


def _moved(tree: Any, other: Any, share: Any) -> Any:
  """Moves parameters by a share of the way to `other`; copies other leaves."""
  start, end = _parameters(tree), _parameters(other)
  if start is not tree:
    return {**other, _PARAMS: _moved(start, end, share)}

  def move(x, y):
    if not flat.is_float(x):
      return y
    start, end = flat.wide(x), flat.wide(y)
    return (start + share * (end - start)).astype(x.dtype)

  return jax.tree.map(move, tree, other)
