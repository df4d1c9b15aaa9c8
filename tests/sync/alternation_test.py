"""Two averagers that take turns."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax.sync import alternation, averagers, fragments, traffic
from tests.support import rounds

K, N, SIZE = 3, 4, 20
OUTER = averagers.outer(optax.sgd(0.7, momentum=0.9, nesterov=True))
SOME = fragments.fragments(4, 'random')


def test_random_fragments_between_outer_steps_leave_these_as_they_are(mapper):
  """SPARTA with DiLoCo: an exchange that keeps the mean keeps the next step."""
  moves = np.random.default_rng(0).normal(size=(4 * K, N, SIZE))
  moves = moves.astype(np.float32)
  both = alternation.interleave(K, OUTER, SOME)
  left, _ = rounds.run(both, jnp.zeros(SIZE), moves, mapper)
  alone = moves.reshape(4, K, N, SIZE).sum(1)
  expected, _ = rounds.run(OUTER, jnp.zeros(SIZE), alone, mapper)
  np.testing.assert_allclose(left[K - 1 :: K], expected, atol=1e-4)
  common = (left == left[:, :1]).all(1)
  assert common[K - 1 :: K].all()
  between = np.delete(common, np.s_[K - 1 :: K], axis=0)
  assert (between.sum(1) >= SIZE // 4).all() and not between.all(1).any()


def test_each_sends_in_its_share_of_the_synchronizations():
  both = alternation.interleave(K, averagers.mean(), SOME)
  tree = jnp.zeros(SIZE)
  sent = traffic.sent(both.sends(tree, N), 'sync', N)
  whole = traffic.sent(averagers.mean().sends(tree, N), 'sync', N)
  assert sent == pytest.approx(whole / K + whole / 4 * (1 - 1 / K))
