"""Presets of an outer optimizer against their papers' algorithms, in NumPy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax import methods, optimizers
from selsync_jax.commands import config_file
from tests.support import rounds
from tests.support.trajectory import train

N, SIZE, ROUNDS = 4, 9, 30
CONTEXT = methods.Context(8, 0)
TAU = 1e-3


def adaptive(moves, rate, second_moment, b1, b2, start):
  """Algorithm 2 of Reddi et al., with bias correction of the moments."""
  x, m, v = 0.0, -start, start  # An optimizer's gradients point uphill.
  for t, delta in enumerate(moves.mean(axis=1), 1):
    m = b1 * m + (1 - b1) * delta
    v = second_moment(v, delta**2)
    corrected = v / (1 - b2**t)
    x = x + rate * m / (1 - b1**t) / (np.sqrt(corrected) + TAU)
    yield x


def trained(method, moves):
  """The parameters after each round, [ROUNDS, N, SIZE]."""
  averager = methods.create_strategy(method, CONTEXT).averager
  moves = {'params': moves.astype(np.float32)}
  left, _ = rounds.run(averager, {'params': jnp.zeros(SIZE)}, moves)
  return left['params']


@pytest.mark.parametrize(
  'method, rate, second_moment, start',
  [
    ('fedadam', 0.01, lambda v, d: 0.99 * v + 0.01 * d, 0.0),
    ('fedyogi', 0.01, lambda v, d: v - 0.01 * d * np.sign(v - d), TAU**2),
  ],
)
def test_the_server_takes_the_published_steps(
  method, rate, second_moment, start
):
  moves = np.random.default_rng(0).normal(size=(ROUNDS, N, SIZE)) / 100
  moves[10:] /= 10  # Yogi's second moment falls more slowly than Adam's.
  expected = adaptive(moves, rate, second_moment, 0.9, 0.99, start)
  for found, x in zip(trained(method, moves), expected, strict=True):
    np.testing.assert_allclose(found, np.tile(x, (N, 1)), atol=1e-5)


def test_fedadagrad_sums_squares_and_begins_with_that_of_tau():
  moves = np.random.default_rng(0).normal(size=(ROUNDS, N, SIZE)) / 10
  found = trained('fedadagrad', moves)
  mean = moves.mean(axis=1)
  squares = TAU**2 + np.cumsum(mean**2, axis=0)
  steps = 0.1 * mean / np.sqrt(squares + TAU)  # Optax adds eps in the root.
  np.testing.assert_allclose(found[:, 0], steps.cumsum(axis=0), atol=1e-4)


@pytest.mark.slow
def test_muloco_is_muon_inside_and_nesterov_outside():
  config = config_file.load('configs/digits.py:muloco', [])
  inner = config.optimizer.name, config.optimizer.learning_rate
  assert inner == ('muon', 0.02) and config.sync.period == 30
  strategy = methods.create_strategy('muloco', CONTEXT, period=3)
  rng = np.random.default_rng(0)
  goals, start = rng.normal(size=(N, 3, 4)), rng.normal(size=(3, 4))
  goals, start = goals.astype(np.float32), start.astype(np.float32)

  def loss(params, model_state, goal, key):
    return jnp.sum((params['w'] - goal) ** 2) / 2, ({}, model_state)

  optimizer = optimizers.create_optimizer(*inner)
  params = {'w': jnp.asarray(start)}
  found, _ = train(strategy, optimizer, params, goals, 12, loss)
  muon = optax.contrib.muon(0.02)
  own, states = [start] * N, [muon.init({'w': start})] * N
  outer = rounds.Outer(start)
  for t in range(12):
    for i in range(N):
      updates, states[i] = muon.update(
        {'w': own[i] - goals[i]}, states[i], {'w': own[i]}
      )
      own[i] = own[i] + np.asarray(updates['w'])
    if (t + 1) % 3 == 0:
      own = [outer(own)] * N
    np.testing.assert_allclose(found['w'][t], own, atol=1e-4)
