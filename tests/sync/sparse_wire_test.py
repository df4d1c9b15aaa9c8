"""The sparse wire against SparseLoCo's algorithm."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax.sync import averagers, sparse_wire
from tests.support import rounds

N, SIZE = 3, 9000  # Two chunks of 4,096 elements and a shorter one.


def in_two_bits(row, k):
  """A worker's message for a chunk, decoded."""
  sent = np.zeros_like(row)
  places = np.argsort(-np.abs(row), kind='stable')[:k]
  size = np.abs(row[places])
  upper = size > (size.max() + size.min()) / 2
  for half in upper, ~upper:
    if half.any():
      sent[places[half]] = np.sign(row[places[half]]) * size[half].mean()
  return sent


def sparse_loco(start, moves, density, decay, rate):
  """The published algorithm: memory, chunk-wise top-k, two bits, mean, step."""
  common, memory = start.astype(np.float64), np.zeros_like(moves[0], float)
  k = int(np.ceil(density * 4096))
  for move in moves:
    memory = decay * memory + move
    sent = np.zeros((N, 3 * 4096))
    padded = np.pad(memory, ((0, 0), (0, 3 * 4096 - SIZE)))
    for worker in range(N):
      for first in range(0, 3 * 4096, 4096):
        chunk = slice(first, first + 4096)
        sent[worker, chunk] = in_two_bits(padded[worker, chunk], k)
    sent = sent[:, :SIZE]
    memory = memory - sent
    common = common + rate * sent.mean(axis=0)
    yield common


@pytest.mark.parametrize('decay', [1.0, 0.9])
def test_with_an_outer_step_it_is_sparse_loco(decay):
  rng = np.random.default_rng(0)
  moves = rng.standard_t(3, size=(12, N, SIZE)).astype(np.float32)
  wire = sparse_wire.sparse(0.02, decay=decay)
  averager = averagers.outer(optax.sgd(0.8), averager=averagers.mean(wire=wire))
  left, _ = rounds.run(averager, jnp.ones(SIZE), moves)
  assert (left == left[:, :1]).all()  # All workers decode the same bits.
  expected = sparse_loco(np.ones(SIZE), moves, 0.02, decay, 0.8)
  for found, common in zip(left[:, 0], expected, strict=True):
    np.testing.assert_allclose(found, common, atol=1e-4)


def test_a_worker_that_is_not_finite_is_seen_by_all_but_not_if_left_out():
  wire = sparse_wire.sparse(0.1)
  moves = np.ones((1, N, 50), np.float32)
  moves[0, 1, 7] = np.nan
  left, _ = rounds.run(averagers.mean(wire=wire), jnp.zeros(50), moves)
  assert np.isnan(left).any(axis=-1).all()
  for seed, takes_part in ((2, False), (3, True)):
    subset = averagers.subset_mean(0.34, seed, wire=wire)
    left, state = rounds.run(subset, jnp.zeros(50), moves)
    assert np.isnan(left[0, 0]).any() == takes_part
    assert not np.isnan(state.wire.error[0]).any()


def test_few_bytes_travel():
  mean = averagers.mean(wire=sparse_wire.sparse(0.02))
  (floors, values) = mean.sends(np.zeros(8192, 'f4'), N)
  # 82 of 4,096: two bytes for an index, two bits for a value, two means.
  assert values.nbytes == 2 * (82 * 2 + 21 + 8)
  assert floors.nbytes == 4
