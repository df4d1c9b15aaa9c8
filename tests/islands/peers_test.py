"""Collectives among islands, as `jax.pmap` has them."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.config import RunError
from selsync_jax.islands import peers
from selsync_jax.islands.board import Board
from selsync_jax.islands.program import cut
from tests.support.on_board import on_board

N = 3
RING = [(i, (i + 1) % N) for i in range(N)]
COLLECTIVES = {
  'psum': lambda x: lax.psum(x, ss.AXIS),
  'psum of integers': lambda x: lax.psum(jnp.int32(8 * x), ss.AXIS),
  'pmean': lambda x: lax.pmean(x, ss.AXIS),
  'pmax': lambda x: lax.pmax(x, ss.AXIS),
  'pmin': lambda x: lax.pmin({'x': x, 'y': -x}, ss.AXIS),
  'all_gather': lambda x: lax.all_gather(x, ss.AXIS, axis=1),
  'all_gather, tiled': lambda x: lax.all_gather(x, ss.AXIS, axis=1, tiled=True),
  'all_to_all': lambda x: lax.all_to_all(x, ss.AXIS, 0, 1),
  'all_to_all, tiled': lambda x: lax.all_to_all(x, ss.AXIS, 0, 1, tiled=True),
  'psum_scatter': lambda x: lax.psum_scatter(x, ss.AXIS),
  'psum_scatter, tiled': lambda x: lax.psum_scatter(x, ss.AXIS, tiled=True),
  'ppermute': lambda x: lax.ppermute(x, ss.AXIS, RING),
  'ppermute of some': lambda x: lax.ppermute(x, ss.AXIS, [(0, 2)]),
  'bfloat16': lambda x: lax.psum(x.astype(jnp.bfloat16), ss.AXIS),
  'axis_index': lambda x: x + lax.axis_index(ss.AXIS),
}


@pytest.mark.parametrize('small', [0, peers.SMALL])
@pytest.mark.parametrize('name', COLLECTIVES)
def test_a_collective_is_that_of_pmap(name, small, monkeypatch):
  monkeypatch.setattr(peers, 'SMALL', small)  # Both ways of an all-reduce.
  rng = np.random.default_rng(0)
  rows = np.float32(rng.integers(-8, 8, size=(N, N, 5)) / 8)  # Sums are exact.
  fn = COLLECTIVES[name]
  expected = jax.pmap(fn, axis_name=ss.AXIS)(rows)
  found = on_board(cut(fn), N, rows)
  for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('name', COLLECTIVES)
def test_one_that_prepares_gets_arrays_like_it_from_nobody(name, monkeypatch):
  alone, fn = Board(N, timeout=0.01).peers(1), COLLECTIVES[name]
  monkeypatch.setattr(type(alone), 'prepares', True)
  rows = np.ones((N, N, 5), np.float32)
  expected = jax.pmap(fn, axis_name=ss.AXIS)(rows)
  found = cut(fn)(alone, rows[1])
  for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    assert (one.dtype, one.shape) == (other.dtype, other[1].shape)


def test_all_islands_have_the_bits_of_one_sum():
  rows = np.random.default_rng(0).normal(size=(7, 10_000)).astype(np.float32)
  found = on_board(cut(COLLECTIVES['psum']), 7, rows)
  assert (found == found[0]).all()
  np.testing.assert_allclose(found[0], rows.sum(0), atol=1e-5)


def test_an_island_that_does_not_answer_is_named():
  alone = Board(2, timeout=0.01).peers(0)
  with pytest.raises(RunError, match=r'island 1 has not answered for 0\.01 s'):
    alone.exchange([np.zeros(1)] * 2)
