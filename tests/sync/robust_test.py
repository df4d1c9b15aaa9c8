"""A mean in which unusual changes count less, or not at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selsync_jax.sync import robust, wires
from tests.support import rounds

N, SIZE, WARMUP = 4, 6, 3


def penalized(moves, z, clip, decay):
  """The mean's trajectory in NumPy, [rounds, SIZE]."""
  common = np.zeros(SIZE)
  level, variance = np.zeros(N), np.zeros(N)
  trajectory = []
  for t, changes in enumerate(moves):
    weights = np.zeros(N)
    for i, change in enumerate(changes):
      norm = np.sqrt((change**2).sum())
      limit = level[i] + z * np.sqrt(variance[i])
      if not np.isfinite(norm) or (t >= WARMUP and norm > limit):
        continue
      weights[i] = np.exp(-norm)
      old = min(decay, t / (t + 1))
      level[i] = old * level[i] + (1 - old) * norm
      variance[i] = old * variance[i] + (1 - old) * (norm - level[i]) ** 2
    if weights.sum():
      weights /= weights.sum()
    kept = np.where(weights[:, None] > 0, changes, 0)
    mean = (weights[:, None] * kept).sum(0)
    common = common + mean * min(1, clip / max(np.sqrt(mean @ mean), 1e-30))
    trajectory.append(common)
  return np.array(trajectory), weights


@pytest.mark.parametrize('wire', [wires.float32(), wires.int8()])
def test_unusual_changes_count_nothing_and_long_ones_less(wire, mapper):
  rng = np.random.default_rng(0)
  moves = rng.normal(size=(9, N, SIZE)).astype(np.float32)
  moves[6, 2] *= 50  # Unusual for worker 2.
  moves[7, 1] = np.nan
  moves[8] *= 1000  # Unusual for all.
  fields = {'z': 3.0, 'clip': 0.8, 'decay': 0.6}
  averager = robust.robust_mean(warmup=WARMUP, wire=wire, **fields)
  left, state = rounds.run(averager, jnp.zeros(SIZE), moves, mapper)
  expected, weights = penalized(moves, **fields)
  assert not weights.any()
  tolerance = 1e-5 if wire.exact else 0.1
  for i in range(N):
    np.testing.assert_allclose(left[:, i], expected, atol=tolerance)
  np.testing.assert_allclose(left[8], left[7], atol=tolerance)
  np.testing.assert_array_equal(state.consensus, left)


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
  both, _ = rounds.run(averager, start, {'params': moves, 'model_state': far})
  np.testing.assert_array_equal(both['params'], alone)
  np.testing.assert_allclose(
    both['model_state'][:, 0], np.cumsum(far.mean(1), axis=0), rtol=1e-4
  )


def test_a_worker_whose_first_changes_are_not_finite_is_usual_later():
  moves = np.ones((5, N, SIZE), np.float32)
  moves[:2, 1] = np.nan
  averager = robust.robust_mean(warmup=2)
  _, state = rounds.run(averager, jnp.zeros(SIZE), moves)
  np.testing.assert_array_equal(state.rounds[-1], [5, 3, 5, 5])


def test_other_workers_have_no_usual_norm_yet():
  averager = robust.robust_mean()
  fresh = jax.vmap(averager.init)(jnp.zeros((2, SIZE)))
  saved = averager.init(jnp.ones(SIZE))._replace(
    level=jnp.float32(3), variance=jnp.float32(1), rounds=jnp.int32(20)
  )
  saved = jax.tree.map(lambda x: x[None], saved)
  new = averager.resize(saved, fresh, (0, 1), 100)
  np.testing.assert_array_equal(new.consensus, np.ones((2, SIZE)))
  np.testing.assert_array_equal([new.level, new.variance, new.rounds], 0)
