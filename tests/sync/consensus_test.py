"""The mean over workers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.devices import layout


def test_the_consensus_is_the_mean_of_floats_and_leaves_counters(mapper):
  tree = {
    'w': jnp.arange(12.0).reshape(4, 3),
    'half': jnp.arange(4, dtype=jnp.bfloat16),
    'scalar': jnp.array([0.0, 1.0, 2.0, 5.0]),
    'count': jnp.array([1, 2, 3, 4]),
    'empty': {},
  }
  mean = layout.choose(mapper, 4).map_workers(ss.consensus)(tree)
  assert jax.tree.map(lambda x: (x.shape, x.dtype), mean) == jax.tree.map(
    lambda x: (x.shape, x.dtype), tree
  )
  np.testing.assert_array_equal(mean['w'], np.tile([4.5, 5.5, 6.5], (4, 1)))
  np.testing.assert_array_equal(mean['half'], [1.5] * 4)
  np.testing.assert_array_equal(mean['scalar'], [2.0] * 4)
  np.testing.assert_array_equal(mean['count'], tree['count'])


def test_a_consensus_over_some_ignores_the_others_even_if_not_finite(mapper):
  tree = (jnp.array([1.0, np.nan, 3.0, np.inf]), jnp.ones((4, 2)))
  where = jnp.array([True, False, True, False])
  mean = layout.choose(mapper, 4).map_workers(
    lambda tree, where: ss.consensus(tree, where=where, count=2)
  )(tree, where)
  np.testing.assert_array_equal(mean[0], [2.0] * 4)
  np.testing.assert_array_equal(mean[1], np.ones((4, 2)))


HALVES = {
  'all': ss.consensus,
  'some': lambda tree: ss.consensus(tree, where=True, count=64),
  'groups': lambda tree: ss.groups(8).apply(tree, ss.groups(8).init(tree))[0],
  'ring': lambda tree: ss.gossip('ring').apply(
    tree, ss.gossip('ring').init(tree)
  )[0],
}


@pytest.mark.parametrize('name', HALVES)
@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_equal_workers_in_half_precision_keep_their_bits(name, dtype):
  some = jax.random.uniform(jax.random.key(0), (100,), dtype, 1, 2)
  largest = jnp.full(3, 60_000, dtype)  # The largest float16 is 65,504.
  tree = {'some': some, 'largest': largest}
  stacked = jax.tree.map(lambda x: jnp.tile(x, (64, 1)), tree)
  mean = jax.vmap(HALVES[name], axis_name=ss.AXIS)(stacked)
  jax.tree.map(np.testing.assert_array_equal, mean, stacked)


@pytest.mark.parametrize('given', [{'where': True}, {'count': 2}])
def test_a_subset_needs_both_its_members_and_their_count(given):
  with pytest.raises(ValueError, match='where and count go together'):
    ss.consensus(jnp.zeros(3), **given)


class Layer(NamedTuple):
  """A layer whose activation is a leaf, as in an equinox module."""

  weight: Any
  activation: Any = jax.nn.relu


TREES = {
  'synchronize': lambda tree: ss.synchronize(jnp.bool(True), tree),
  'consensus': ss.consensus,
  'step': lambda tree: ss.mean().step(jnp.bool(True), tree, ()),
  'mean': ss.mean().init,
  'outer': ss.outer(optax.sgd(1.0)).init,
  'selsync': ss.selsync(0.3).init,
  'all_reduce': ss.all_reduce().init,
}


@pytest.mark.parametrize('door', TREES)
def test_a_leaf_that_is_not_an_array_is_named(door):
  def worker(weight):
    return TREES[door]({'layers': [Layer(weight)]})

  message = r'^layers/0/activation is a \w+, not an array; pass arrays alone'
  with pytest.raises(ValueError, match=message):
    jax.vmap(worker, axis_name=ss.AXIS)(jnp.ones((4, 2)))
