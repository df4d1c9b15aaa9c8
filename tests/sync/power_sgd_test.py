"""PowerSGD: sends gradients of low rank exactly, and others a bit later."""

import jax
import numpy as np
import pytest

from selsync_jax.sync import power_sgd, reducers, traffic
from tests.support.reduction import run

STEPS, N, RANK = 20, 4, 2


def draw(*shape):
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_a_gradient_of_low_rank_is_that_of_dense_sgd():
  rng = np.random.default_rng(1)
  left, right = rng.normal(size=(STEPS, 30, RANK)), rng.normal(size=(RANK, 20))
  differs = rng.normal(size=(STEPS, N, 30, 20))  # Cancels between workers.
  differs -= differs.mean(axis=1, keepdims=True)
  grads = {
    'kernel': ((left @ right)[:, None] + differs).astype(np.float32),
    'bias': draw(STEPS, N, 20),
  }
  mean, _ = run(power_sgd.power_sgd(RANK), grads)
  dense, _ = run(reducers.all_reduce(), grads)
  jax.tree.map(
    lambda one, other: np.testing.assert_allclose(one, other, atol=2e-5),
    mean,
    dense,
  )


def test_it_is_the_published_algorithm():
  grads = draw(STEPS, N, 30, 20)
  mean, state = run(power_sgd.power_sgd(RANK, seed=3), grads)
  reducer = power_sgd.power_sgd(RANK, seed=3)
  q = np.asarray(reducer.init(grads[0, 0]).q[0], np.float64)
  error = np.zeros((N, 30, 20))
  for t, grad in enumerate(grads.astype(np.float64)):
    delta = grad + error
    p = (delta @ q).mean(axis=0)
    for i in range(RANK):  # Gram-Schmidt.
      p[:, i] -= p[:, :i] @ (p[:, :i].T @ p[:, i])
      p[:, i] /= np.linalg.norm(p[:, i])
    own = delta.transpose(0, 2, 1) @ p
    q = own.mean(axis=0)
    error = delta - p @ own.transpose(0, 2, 1)
    np.testing.assert_allclose(mean[t, 0], p @ q.T, atol=3e-4)
    np.testing.assert_allclose(state.error[0][t], error, atol=3e-4)


def test_gradients_that_vanish_for_a_while_do_not_stop_it():
  grads = np.zeros((4, N, 30, 20), np.float32)
  grads[2] = np.outer(draw(30), draw(20))
  mean, _ = run(power_sgd.power_sgd(RANK), grads)
  total = mean[:, 0].sum(axis=0)
  np.testing.assert_allclose(total, grads[2, 0], atol=1e-5)


@pytest.mark.parametrize('power', [-100, 66, 110])
def test_no_size_of_gradients_is_too_large_or_too_small(power):
  grads = draw(3, N, 30, 20)
  mean, _ = run(power_sgd.power_sgd(RANK), grads)
  other, _ = run(power_sgd.power_sgd(RANK), np.ldexp(grads, power))
  np.testing.assert_array_equal(np.ldexp(mean, power), other)


def test_matrices_are_as_square_as_axes_allow():
  params = {
    'convolution': draw(3, 3, 32, 64),
    'heads': draw(64, 4, 16),
    'bias': draw(64),
    'narrow': draw(100, 3),  # 100 x 2 and 3 x 2 would save little.
  }
  state = power_sgd.power_sgd(3).init(params)
  assert [e.shape for e in state.error] == [(288, 64), (64, 64)]
  assert [q.shape for q in state.q] == [(64, 3), (64, 3)]


def test_everything_travels_in_two_messages():
  params = {'w': draw(300, 200), 'v': draw(100, 100), 'b': draw(200)}
  sends = power_sgd.power_sgd(4).sends(params, N)
  assert sends == (
    traffic.Collective('all_reduce', 4 * 4 * (300 + 100), 'step'),
    traffic.Collective('all_reduce', 4 * (4 * (200 + 100) + 200), 'step'),
  )
