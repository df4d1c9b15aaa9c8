"""Averages, the steps of an outer optimizer, and averagers in turns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax import methods
from selsync_jax.sync import (
  alternation,
  averagers,
  delay,
  exchange,
  fragments,
  traffic,
  wires,
)
from tests.support import rounds
from tests.support.blocks import rows_of, shard_map
from tests.support.trajectory import train

NESTEROV = dict(name='sgd', learning_rate=1.0, momentum=0.9, nesterov=True)


def test_diloco_is_the_papers_algorithm():
  """Algorithm 1 in NumPy, on a quadratic of each worker."""
  goals = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
  curves = np.float32([[0.5, 1.0, 2.0], [1.0, 3.0, 0.2]])
  context = methods.Context(steps_per_epoch=10, seed=0)
  strategy = methods.create_strategy(
    'diloco', context, period=3, outer=NESTEROV
  )
  sgd, start = optax.sgd(0.1), jnp.zeros(3)
  found, _ = train(strategy, sgd, start, (curves, goals), 30)
  own, outer = np.zeros((2, 3)), rounds.Outer(np.zeros(3), rate=1.0)
  for t, after in enumerate(found):
    own = own - 0.1 * curves * (own - goals)
    if t % 3 == 2:
      own = np.tile(outer(own), (2, 1))
    np.testing.assert_allclose(after, own, rtol=1e-5, atol=1e-5)


def test_with_gradient_descent_of_rate_1_an_outer_step_is_the_mean():
  """Bit for bit, or to an ulp if an element moves by more than a factor of two.

  Below that a difference is exact (Sterbenz); the ulp is the larger one's.
  """
  rng = np.random.default_rng(0)
  start = rng.normal(size=999).astype(np.float32)
  moves = rng.normal(size=(1, 2, 999)).astype(np.float32)
  kinds = averagers.outer(optax.sgd(1.0)), averagers.mean()
  outer, mean = (rounds.run(a, start, moves)[0][0] for a in kinds)
  near = (mean / start >= 0.5) & (mean / start <= 2)
  assert near.sum() > 99 and (~near).sum() > 99
  np.testing.assert_array_equal(outer[near], mean[near])
  ulp = np.spacing(np.maximum(np.abs(start), np.abs(mean)))
  assert (np.abs(outer - mean) <= ulp).all()


def test_an_outer_step_over_gossip_is_noloco():
  """NoLoCo's equations in NumPy, with gamma = beta and pairs of two."""
  alpha, beta, workers = 0.5, 0.7, 4
  moves = np.random.default_rng(0).normal(size=(7, workers, 9))
  pairs = exchange.gossip('exponential')
  averager = averagers.outer(optax.sgd(beta, momentum=alpha), averager=pairs)
  left, _ = rounds.run(averager, jnp.zeros(9), moves.astype(np.float32))
  slow, delta = np.zeros((2, workers, 9))
  for t, move in enumerate(moves):
    change, partner = move, np.roll(np.arange(workers), 1 + t % 2)
    mean_change = (change + change[partner]) / 2
    mean_slow = (slow + slow[partner]) / 2
    delta = alpha * delta + beta * mean_change - beta * (slow - mean_slow)
    slow = slow + delta
    np.testing.assert_allclose(left[t], slow, atol=1e-5)


def test_batch_statistics_are_averaged_and_not_extrapolated():
  context = methods.Context(steps_per_epoch=10, seed=0)
  for name in ('diloco', 'fedadam', 'slowmo'):
    averager = methods.create_strategy(name, context).averager
    start = {'params': jnp.ones(2), 'model_state': jnp.ones(2)}
    moves = jax.tree.map(lambda x: np.ones((3, 2, 2), np.float32), start)
    left, _ = rounds.run(averager, start, moves)
    np.testing.assert_allclose(left['model_state'][:, 0, 0], [2, 3, 4])
    assert (left['params'][1:] != left['model_state'][1:]).all()


@pytest.mark.parametrize(
  'create', [averagers.outer, delay.eager_outer], ids=['outer', 'eager_outer']
)
def test_an_outer_step_moves_only_floating_leaves(create):
  start = {'w': jnp.ones(2), 'count': jnp.uint32(3), 'on': jnp.bool(True)}
  moves = {
    'w': np.ones((2, 2, 2), np.float32),
    'count': np.array([[1, 2], [1, 2]], np.uint32),
    'on': np.zeros((2, 2), bool),
  }
  averager = create(optax.sgd(0.5, momentum=0.9))
  left, _ = rounds.run(averager, start, moves)
  np.testing.assert_array_equal(left['count'], [[4, 5], [5, 7]])
  assert left['on'].all() and (left['w'] > 1).all()


def test_a_wire_learns_where_an_outer_step_has_moved():
  wire = wires.int8()
  subset = averagers.subset_mean(1.0, wire=wire)
  every = alternation.interleave(2, averagers.mean(wire=wire), averagers.MEAN)
  tree = jnp.full(3, 5.0)
  for averager, own in (subset, 'wire'), (every, 'averager'):
    state = averager.rebase(tree, averager.init(jnp.zeros(3)))
    np.testing.assert_array_equal(getattr(state, own).reference[0], tree)


SGD = optax.sgd(0.5)
HALF = averagers.outer(SGD)
KTH = alternation.interleave(2, HALF, averagers.MEAN)


@pytest.mark.parametrize(
  'averager',
  [
    averagers.outer(SGD, averager=HALF),
    averagers.outer(SGD, averager=averagers.outer(SGD, averager=HALF)),
    averagers.outer(SGD, averager=KTH),
    alternation.interleave(
      2, averagers.outer(SGD, averager=HALF), averagers.MEAN
    ),
    delay.delayed(averagers.outer(SGD, averager=HALF), 1),
  ],
  ids=str,
)
def test_nested_outer_steps_move_nothing_while_workers_stand_still(averager):
  moves = np.zeros((6, 2, 3), np.float32)
  moves[0] = 4.0
  left, _ = rounds.run(averager, jnp.zeros(3), moves)
  np.testing.assert_array_equal(left[2:], np.tile(left[2], (4, 1, 1)))
  assert 0 < left[2].max() <= 4


def test_a_subset_is_the_same_on_all_workers_and_another_in_each_round():
  averager = averagers.subset_mean(0.5, seed=1)
  moves = np.tile(np.eye(4, dtype=np.float32), (12, 1, 1))
  left, _ = rounds.run(averager, jnp.zeros(4), moves)
  assert (left == left[:, :1]).all()
  weights = np.diff(left[:, 0], axis=0, prepend=0)
  assert all(sorted(row) == [0, 0, 0.5, 0.5] for row in weights)
  assert len({row.tobytes() for row in weights}) > 2


def test_an_average_may_begin_and_be_scanned_inside_shard_map():
  averager = delay.eager_outer(optax.sgd(0.5))

  def worker(w):
    def step(carry, move):
      w, state = carry
      return averager.step(jnp.bool(True), w + move * w, state), None

    moves = jnp.linspace(0.1, 0.2, 3)
    return jax.lax.scan(step, (w, averager.init(w)), moves)[0][0]

  scanned = shard_map(rows_of(worker))
  w = jnp.arange(8.0).reshape(4, 2)
  expected = jax.vmap(worker, axis_name='workers')(w)
  np.testing.assert_allclose(scanned(w), expected, rtol=1e-5)


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
