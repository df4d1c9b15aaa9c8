"""Gossip and groups: mixing in one round, and in several."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selsync_jax.devices import mappers
from selsync_jax.sync import exchange, traffic
from selsync_jax.sync.network import Network
from tests.support import rounds

ROUNDS = 40


def matrices(averager, workers):
  """The mixing matrix of each of 40 rounds."""

  def worker(row):
    def mixed(count):
      return averager.apply(row, exchange.ExchangeState(count))[0]

    return jax.lax.map(mixed, jnp.arange(ROUNDS))

  rows = mappers.Vmap(workers).map_workers(worker)(jnp.eye(workers))
  return np.swapaxes(np.asarray(rows), 0, 1)


def powers(matrix):
  """The product with all earlier matrices."""
  return functools.reduce(lambda product, one: one @ product, matrix)


EXCHANGES = {
  'one alone': (exchange.gossip(), 1),
  'two in a ring': (exchange.gossip('ring'), 2),
  'ring': (exchange.gossip('ring'), 5),
  'exponential': (exchange.gossip('exponential'), 8),
  'exponential, any number': (exchange.gossip('exponential'), 6),
  'pairs': (exchange.gossip('random', seed=3), 8),
  'pairs and one over': (exchange.gossip('random', seed=3), 7),
  'butterfly of 2': (exchange.groups(2), 8),
  'butterfly of 4': (exchange.groups(4), 8),
  'random groups': (exchange.groups(4, 'random', seed=3), 12),
  'groups and all': (exchange.groups(2, all_every=3), 4),
}


@pytest.mark.parametrize('name', EXCHANGES)
def test_mixing_matrices_are_doubly_stochastic_and_reach_all_workers(name):
  averager, workers = EXCHANGES[name]
  mixes = matrices(averager, workers)
  assert (mixes >= 0).all()
  np.testing.assert_allclose(mixes.sum(1), 1, atol=1e-6)
  np.testing.assert_allclose(mixes.sum(2), 1, atol=1e-6)
  np.testing.assert_allclose(powers(mixes), 1 / workers, atol=0.01)


@pytest.mark.parametrize(
  'name', ['ring', 'pairs and one over', 'random groups']
)
def test_the_mean_over_workers_is_kept(name):
  averager, workers = EXCHANGES[name]
  moves = np.random.default_rng(0).normal(size=(20, workers, 33)) / 20
  moves = moves.astype(np.float32)
  kept, _ = rounds.run(averager, jnp.zeros(33), moves)
  exact = np.cumsum(moves.mean(1, dtype=np.float64), axis=0)
  np.testing.assert_allclose(kept.mean(1), exact, atol=1e-6)


@pytest.mark.parametrize('workers', [4, 16])
def test_an_exponential_graph_agrees_after_log2_n_rounds(workers):
  rng = np.random.default_rng(0)
  # Sums of small whole numbers are exact, whatever their order.
  start = rng.integers(-99, 99, (workers, 50)).astype(np.float32)
  moves = np.zeros((workers.bit_length() - 1, workers, 50), np.float32)
  moves[0] = start
  kept, _ = rounds.run(exchange.gossip(), jnp.zeros(50), moves, 'pmap')
  mean = np.broadcast_to(start.mean(0), start.shape)
  np.testing.assert_array_equal(kept[-1], mean)
  assert all((early != mean).any() for early in kept[:-1])


def test_neighbors_in_a_ring_are_mixed_in_thirds():
  one = np.eye(5)
  thirds = (one + np.roll(one, 1, 0) + np.roll(one, -1, 0)) / 3
  np.testing.assert_allclose(
    matrices(exchange.gossip('ring'), 5)[7], thirds, atol=1e-7
  )


@pytest.mark.parametrize('workers, left_over', [(6, 0), (7, 1)])
def test_random_pairs_are_disjoint_and_every_two_meet(workers, left_over):
  mixes = matrices(exchange.gossip('random', seed=1), workers)
  for mix in mixes:
    assert set(mix.ravel()) == {0, 0.5} | ({1} if left_over else set())
    assert (mix == mix.T).all() and np.sum(np.diag(mix) == 1) == left_over
  met = mixes.sum(0) > 0
  assert met.all()
  other_seed = matrices(exchange.gossip('random', seed=2), workers)
  assert (mixes != other_seed).any()


def test_a_worker_left_over_sends_nothing_and_waits():
  sends = exchange.gossip('random').sends(jnp.zeros(10), 7)
  assert traffic.sent(sends, 'sync', 7) == pytest.approx(40 * 6 / 7)
  network = Network(7, bandwidth=320.0, latency=0.5)
  assert sum(map(network.seconds, sends)) == pytest.approx(1 + 0.5)


@pytest.mark.parametrize(
  'averager, workers, size',
  [
    (exchange.groups(2), 8, 2),
    (exchange.groups(4), 8, 4),
    (exchange.groups(4), 16, 4),
    (exchange.groups(2, 'random'), 6, 2),
    (exchange.groups(4, 'random'), 16, 4),
  ],
)
def test_groups_are_disjoint_and_of_one_size(averager, workers, size):
  for mix in matrices(averager, workers):
    groups = {tuple(np.flatnonzero(row)) for row in mix}
    assert sorted(sum(groups, ())) == list(range(workers))
    assert {len(group) for group in groups} == {size}
    assert set(mix.ravel()) == {0, 1 / size}


def test_workers_of_a_group_have_the_same_bits(mapper):
  moves = np.random.default_rng(0).normal(size=(3, 8, 40)).astype(np.float32)
  left, _ = rounds.run(exchange.groups(4), jnp.zeros(40), moves, mapper)
  for one in left:
    assert len({worker.tobytes() for worker in one}) == 2


def test_butterfly_groups_are_the_wait_avoiding_papers():
  """The paper's masks for P = 16 and S = 4 are bits 0 and 1, then 2 and 3."""
  first, second, third = matrices(exchange.groups(4), 16)[:3]
  np.testing.assert_array_equal(np.flatnonzero(first[5]), [4, 5, 6, 7])
  np.testing.assert_array_equal(np.flatnonzero(second[5]), [1, 5, 9, 13])
  np.testing.assert_array_equal(first, third)


def test_every_tau_rounds_all_workers_average():
  mixes = matrices(exchange.groups(2, 'random', all_every=4), 6)
  everybody = [bool((mix > 0).all()) for mix in mixes]
  assert everybody == [(i + 1) % 4 == 0 for i in range(ROUNDS)]


def test_leaves_of_all_dtypes_are_mixed_and_counters_kept():
  tree = {
    'half': jnp.arange(2, dtype=jnp.bfloat16),
    'w': jnp.arange(6.0).reshape(2, 3),
    'count': jnp.array([3, 4]),
  }
  gossip = exchange.gossip()
  mixed, _ = mappers.Pmap(2).map_workers(
    lambda tree: gossip.apply(tree, gossip.init(tree))
  )(tree)
  assert mixed['half'].dtype == jnp.bfloat16
  np.testing.assert_array_equal(mixed['half'], [0.5, 0.5])
  np.testing.assert_array_equal(mixed['w'], [[1.5, 2.5, 3.5]] * 2)
  np.testing.assert_array_equal(mixed['count'], tree['count'])
  one = jax.tree.map(lambda x: x[0], tree)
  sizes = [collective.nbytes for collective in gossip.sends(one, 2)]
  assert sorted(sizes) == [2, 12]
