"""A mean that limits the influence of diverging workers, layer by layer.

The rule is EDiT's, as its authors released it, with the detector, the weights
and the clip. Differences from the released code:

* A layer there is a unit of FSDP. Here it is the arrays of one module, such as
  a kernel and its bias: leaves whose paths differ only in the last key.
* A norm that is not finite is an outlier, and does not enter the detector.
* If a layer's change is an outlier on all workers, that code skips the layer's
  outer step. Here `outer` steps with a gradient of 0, so the momentum moves.
* An outlier has weight 0; there its norm grows by 1e6, and its change is 0.
* The temperature of the softmax is always 1.

References:
  Cheng et al., `EDiT: A Local-SGD-Based Efficient Distributed Training Method
    for Large Language Models`, ICLR 2025 (arXiv 2412.07210), the penalty on
    pseudo-gradients. The released code is atorch/atorch/local_sgd in
    intelligent-machine-learning/dlrover, read at commit a731530.
"""

from collections.abc import Mapping
import functools
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
Norms = Float32[Array, ' layers']
_PARAMS = 'params'
_BOX = jax.tree_util.GetAttrKey('value')
"""The key of an array inside a variable of nnx."""


class Detector(NamedTuple):
  """A worker's statistics of the norms of its changes, one for each layer.

  `count` counts finite norms. `scores` has the scores of the last norms, oldest
  first. A score is the distance from the mean, in standard deviations.
  """

  count: Int32[Array, ' layers']
  mean: Norms
  variance: Norms
  scores: Float32[Array, 'warmup layers']


class RobustState(NamedTuple):
  """State of `robust_mean`; `detector` differs between workers.

  `consensus` is the last common tree.
  """

  consensus: Any
  detector: Detector
  wire: Any


@part
def robust_mean(
  *,
  z: Positive = 3.0,
  clip: Positive = 10.0,
  decay: Share = 0.98,
  warmup: Warmup = 120,
  wire: Wire = FLOAT32,
  axis_name: str = AXIS,
) -> Averager:
  """Averages changes with less weight on long ones and none on outliers.

  A worker's change is its tree minus the last common tree. Each layer of a
  change is judged alone. Its weight is the softmax, over workers, of its
  negative norm, or 0 for an outlier. If the layer is an outlier on all workers,
  it stays at the last common value. The layer's mean change is clipped. If the
  tree has `params`, only these are measured, weighted and clipped. Running
  statistics have a plain mean, to which an array that is not finite contributes
  its last common value.

  A layer is an outlier if its norm is not finite or has too high a score. The
  score is the norm's distance from the running mean of the worker's norms, in
  running standard deviations. It is too high above `z`, or above `z` standard
  deviations of the last `warmup` scores if these deviate by more than 1.

  With the defaults, which are EDiT's, no finite norm is an outlier in the first
  120 averages, so in a short run none is. The running mean needs that long,
  because it starts at 0: it reaches 91% of a constant norm after 120 averages,
  but only 18% after 10. A shorter warm-up needs a smaller decay, such as
  `warmup=10, decay=0.8`.

  Args:
    z: the score above which a norm is an outlier.
    clip: the largest norm of a layer's mean change.
    decay: the decay of the running mean and variance of the norms, in [0, 1);
      EDiT's alpha is 1 - decay.
    warmup: the number of a worker's first finite norms that are never outliers,
      and the number of scores whose deviation counts; at least 2.
    wire: the encoding of the mean.
  """

  def init(tree):
    zeros = jnp.zeros(len(_layers(tree)), jnp.float32)
    scores = jnp.zeros((warmup, zeros.size), jnp.float32)
    detector = Detector(zeros.astype(jnp.int32), zeros, zeros, scores)
    return RobustState(tree, detector, wire.init(tree))

  def is_high(norms, detector):
    spread = jnp.std(detector.scores, axis=0, ddof=1)
    is_far = _score(norms, detector) > z * jnp.maximum(1, spread)
    return is_far & (detector.count >= warmup)

  def updated(norms, old):
    count = old.count + 1
    mean = old.mean + (1 - decay) * (norms - old.mean)
    square = (norms - old.mean) * (norms - mean)
    variance = decay * (old.variance + (1 - decay) * square)
    new = Detector(count, mean, variance, old.scores)
    score = jnp.where(count >= warmup, _score(norms, new), 0)
    new = new._replace(scores=jnp.concatenate([old.scores[1:], score[None]]))
    counts = functools.partial(jnp.where, jnp.isfinite(norms))
    return jax.tree.map(counts, new, old)

  def apply(tree, state):
    before = state.consensus
    norms = _norms(before, tree)
    usual = jnp.isfinite(norms) & ~is_high(norms, state.detector)
    gathered = lax.all_gather(jnp.where(usual, norms, jnp.inf), axis_name)
    weights = jax.nn.softmax(-gathered, axis=0)
    weights = jnp.where(gathered < jnp.inf, weights, 0)
    own = len(gathered) * weights[lax.axis_index(axis_name)]
    tree = _moved(before, _finite(before, tree), own)
    tree, sent = wire.mean(tree, state.wire)
    shorter = jnp.minimum(1, clip / (_norms(before, tree) + 1e-6))
    tree = _moved(before, tree, shorter)
    detector = updated(norms, state.detector)
    return tree, RobustState(tree, detector, wire.rebase(tree, sent))

  def rebase(tree, state):
    return state._replace(consensus=tree, wire=wire.rebase(tree, state.wire))

  return Averager(
    init,
    apply,
    rebase=rebase,
    resize=resizing.fields(consensus=resizing.first, wire=wire.resize),
  )


def _score(norms: Norms, detector: Detector) -> Norms:
  """Returns the scores of norms; 0 where no norm has deviated yet."""
  variance = detector.variance
  deviation = jnp.where(variance > 0, jnp.sqrt(variance), jnp.inf)
  return (norms - detector.mean) / deviation


def _layer(path: tuple[Any, ...]) -> tuple[Any, ...]:
  """Returns the path of the module that holds an array."""
  return path[:-2] if path[-1:] == (_BOX,) else path[:-1]


def _layers(tree: Any) -> dict[tuple[Any, ...], list[Any]]:
  """Returns the floating-point parameters by layer."""
  layers = {}
  params = flat.floating(_parameters(tree))
  for path, leaf in jax.tree.leaves_with_path(params):
    layers.setdefault(_layer(path), []).append(leaf)
  return layers


def _norms(tree: Any, other: Any) -> Norms:
  """Returns the norm of each layer's difference."""
  start, end = (flat.wide(flat.floating(each)) for each in (tree, other))
  layers = _layers(optax.tree.sub(end, start))
  return jnp.array([*map(optax.tree.norm, layers.values())], jnp.float32)


def _parameters(tree: Any) -> Any:
  has_others = isinstance(tree, Mapping) and _PARAMS in tree
  return tree[_PARAMS] if has_others else tree


def _finite(tree: Any, other: Any) -> Any:
  """Replaces nonfinite arrays of `other` by the arrays of `tree`."""

  def choose(x, y):
    return jnp.where(jnp.isfinite(y).all(), y, x) if flat.is_float(y) else y

  return jax.tree.map(choose, tree, other)


def _moved(tree: Any, other: Any, shares: Norms) -> Any:
  """Moves layers by their shares of the way to `other`; copies other leaves."""
  start, end = _parameters(tree), _parameters(other)
  if start is not tree:
    return {**other, _PARAMS: _moved(start, end, shares)}
  share = dict(zip(_layers(tree), shares, strict=True))

  def move(path, x, y):
    if not flat.is_float(x):
      return y
    start, end = flat.wide(x), flat.wide(y)
    return (start + share[_layer(path)] * (end - start)).astype(x.dtype)

  return jax.tree.map_with_path(move, tree, other)
