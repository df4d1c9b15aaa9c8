"""A mean in which unusual changes count less, or not at all."""

import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selsync_jax.sync import robust, wires
from tests.support import rounds

N, SIZE = 4, 6
FIELDS = {'z': 1.2, 'clip': 0.8, 'decay': 0.9, 'warmup': 4}
LAYERS = {'dense': {'kernel': (2, 3), 'bias': (3,)}, 'norm': {'scale': (4,)}}


class Detector:
  """EDiT's detector of outliers, of one layer of one worker."""

  def __init__(self, z, decay, warmup):
    self.z, self.alpha, self.warmup = z, 1 - decay, warmup
    self.count, self.mean, self.m2, self.scores = 0, 0.0, 0.0, []

  def score(self, norm):
    deviation = math.sqrt(self.m2)
    if self.count < self.warmup or deviation == 0:
      return 0.0
    return (norm - self.mean) / deviation

  def is_outlier(self, norm):
    if self.count < self.warmup:
      return False
    factor = max(1, np.std(self.scores[-self.warmup :], ddof=1))
    return self.score(norm) > self.z * factor

  def update(self, norm):
    self.count += 1
    change = norm - self.mean
    self.mean += self.alpha * change
    square = change * (norm - self.mean)
    self.m2 = (1 - self.alpha) * (self.m2 + self.alpha * square)
    self.scores.append(self.score(norm))


def penalized(moves, z, clip, decay, warmup):
  """One layer's means and outliers, [rounds, size] and [rounds, N]."""
  detectors = [Detector(z, decay, warmup) for _ in range(N)]
  common = np.zeros(moves.shape[-1])
  means, outliers = [], []
  for changes in moves.astype(np.float64):
    changes, norms = changes.copy(), np.linalg.norm(changes, axis=-1)
    found = [
      not np.isfinite(norm) or detector.is_outlier(norm)
      for detector, norm in zip(detectors, norms, strict=True)
    ]
    for detector, norm in zip(detectors, norms, strict=True):
      if np.isfinite(norm):
        detector.update(norm)
    changes[found], norms[found] = 0, 1e6
    weights = np.exp(norms.min() - norms)
    mean = weights @ changes / weights.sum()
    common = common + mean * min(1, clip / (np.linalg.norm(mean) + 1e-6))
    means.append(common)
    outliers.append(found)
  return np.array(means), np.array(outliers)


def flattened(layer, leading):
  leaves = jax.tree.leaves(layer)
  return np.concatenate([x.reshape(*leading, -1) for x in leaves], -1)


@pytest.mark.parametrize('wire', [wires.float32(), wires.int8()])
def test_each_layer_follows_the_rule_of_edit(wire, mapper):
  steps, rng = 40, np.random.default_rng(17)
  moves = jax.tree.map(
    lambda shape: rng.normal(size=(steps, N, *shape)).astype(np.float32),
    LAYERS,
    is_leaf=lambda node: isinstance(node, tuple),
  )
  for i, length in ((3, 30), (4, 20)):  # The first score raises the limit.
    moves['norm']['scale'][i] *= length
  moves['dense']['kernel'][20, 2] *= 50  # Only in one layer.
  moves['dense']['bias'][25, 1] = np.nan
  moves['norm']['scale'][30] *= 1000  # Of all workers.
  moves['norm']['scale'][35] = np.inf
  start = jax.tree.map(lambda x: jnp.zeros(x.shape[2:]), moves)
  averager = robust.robust_mean(wire=wire, **FIELDS)
  left, state = rounds.run(averager, start, moves, mapper)
  tolerance = 1e-4 if wire.exact else 0.1
  found = {}
  for name, layer in moves.items():
    means, found[name] = penalized(flattened(layer, (steps, N)), **FIELDS)
    there = flattened(left[name], (steps, N))
    for i in range(N):
      np.testing.assert_allclose(there[:, i], means, atol=tolerance)
  jax.tree.map(np.testing.assert_array_equal, state.consensus, left)
  # The scenario has all cases, and many outliers.
  dense, norm = found['dense'], found['norm']
  assert dense[20, 2] and not norm[20, 2]
  assert dense[25, 1] and not norm[25, 1]
  assert norm[30].all() and not dense[30].all()
  assert norm[35].all()
  assert dense.sum() > 20


def test_by_default_the_first_120_norms_are_usual():
  moves = np.full((121, N, SIZE), 0.1, np.float32)
  moves *= np.linspace(1, 1.1, 121)[:, None, None]
  for index, length in ((119, 10), (120, 0)):
    far = moves.copy()
    far[index] *= 1000
    left, _ = rounds.run(robust.robust_mean(), jnp.zeros(SIZE), far)
    moved = left[index, 0] - left[index - 1, 0]
    np.testing.assert_allclose(np.linalg.norm(moved), length, rtol=1e-3)


def test_changes_of_one_length_count_alike():
  moves = np.random.default_rng(0).normal(size=(5, N, SIZE))
  moves /= np.linalg.norm(moves, axis=-1, keepdims=True)
  averager = robust.robust_mean()
  left, _ = rounds.run(averager, jnp.zeros(SIZE), moves.astype(np.float32))
  mean = np.cumsum(moves.mean(1), axis=0)
  np.testing.assert_allclose(left[:, 0], mean, atol=1e-5)


def test_running_statistics_are_averaged_and_decide_nothing():
  """Running statistics may move by far more than any parameter."""
  rng = np.random.default_rng(0)
  moves = rng.normal(size=(4, N, SIZE)).astype(np.float32)
  far = 100 * rng.normal(size=(4, N, 3)).astype(np.float32)
  averager = robust.robust_mean(clip=0.8)
  alone, _ = rounds.run(averager, jnp.zeros(SIZE), moves)
  start = {'params': jnp.zeros(SIZE), 'model_state': jnp.zeros(3)}
  far[2, 1] = np.nan  # Counts as the last mean.
  both, _ = rounds.run(averager, start, {'params': moves, 'model_state': far})
  np.testing.assert_array_equal(both['params'], alone)
  mean = np.cumsum(np.nan_to_num(far).mean(1), axis=0)
  np.testing.assert_allclose(both['model_state'][:, 0], mean, rtol=1e-4)


class Model(nnx.Module):
  """Two modules with three arrays of parameters."""

  def __init__(self):
    self.dense = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    self.norm = nnx.RMSNorm(3, rngs=nnx.Rngs(0))


X = jnp.ones(3)
TREES = {
  'one array': (X, 1),
  'one level': ({'w': X, 'b': X}, 1),
  'two modules': ({'a': {'w': X, 'b': X}, 'b': {'w': X}}, 2),
  'parameters': (
    {'params': {'a': {'w': X}}, 'model_state': {'b': {'c': X}}},
    1,
  ),
  'a module within a module': ({'a': {'w': X, 'b': {'w': X}}}, 2),
  'a counter': ({'a': {'w': X}, 'b': {'count': jnp.int32(0)}}, 1),
  'nnx': (nnx.state(Model(), nnx.Param), 2),
}


@pytest.mark.parametrize('case', TREES)
def test_a_layer_is_the_arrays_of_one_module(case):
  tree, layers = TREES[case]
  assert robust.robust_mean().init(tree).detector.mean.shape == (layers,)


def test_norms_that_are_not_finite_are_not_counted():
  moves = np.ones((5, N, SIZE), np.float32)
  moves[:2, 1] = np.nan
  averager = robust.robust_mean(warmup=2)
  _, state = rounds.run(averager, jnp.zeros(SIZE), moves)
  np.testing.assert_array_equal(state.detector.count[-1, :, 0], [5, 3, 5, 5])


def test_other_workers_have_no_usual_norm_yet():
  averager = robust.robust_mean()
  fresh = jax.vmap(averager.init)(jnp.zeros((2, SIZE)))
  saved = averager.init(jnp.ones(SIZE))
  detector = jax.tree.map(lambda x: x + 1, saved.detector)
  saved = jax.tree.map(lambda x: x[None], saved._replace(detector=detector))
  new = averager.resize(saved, fresh, (0, 1), 100)
  np.testing.assert_array_equal(new.consensus, np.ones((2, SIZE)))
  jax.tree.map(np.testing.assert_array_equal, new.detector, fresh.detector)
