"""FedProx and SCAFFOLD against their algorithms, on quadratics."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.sync import drift
from tests.support.trajectory import train

N, SIZE, LOCAL, ROUNDS, RATE = 4, 3, 5, 40, 0.1
RNG = np.random.default_rng(0)
CURVES = RNG.uniform(0.2, 2.0, size=(N, SIZE))
GOALS = RNG.normal(size=(N, SIZE))
BEST = (CURVES * GOALS).sum(axis=0) / CURVES.sum(axis=0)


def slopes(w):
  """The gradients at each worker's parameters [N, SIZE]."""
  return CURVES * (w - GOALS)


def trained(reducer):
  """The parameters after each round, [ROUNDS, N, SIZE]."""
  strategy = ss.Strategy(ss.every(LOCAL), ss.mean(), reducer)
  batch = jnp.float32(CURVES), jnp.float32(GOALS)
  sgd, start = optax.sgd(RATE), jnp.ones(SIZE)
  params, _ = train(strategy, sgd, start, batch, LOCAL * ROUNDS)
  return params[LOCAL - 1 :: LOCAL]


def fedprox(mu):
  w = np.ones(SIZE)
  for _ in range(ROUNDS):
    y = np.tile(w, (N, 1))
    for _ in range(LOCAL):
      y = y - RATE * (slopes(y) + mu * (y - w))
    w = y.mean(axis=0)
    yield w


def scaffold():
  """Algorithm 1 with option II, all workers, and a global rate of 1."""
  x, own, common = np.ones(SIZE), np.zeros((N, SIZE)), np.zeros(SIZE)
  for _ in range(ROUNDS):
    y = np.tile(x, (N, 1))
    for _ in range(LOCAL):
      y = y - RATE * (slopes(y) - own + common)
    new = own - common + (x - y) / (LOCAL * RATE)
    common = common + (new - own).mean(axis=0)
    x, own = y.mean(axis=0), new
    yield x


@pytest.mark.parametrize(
  'reducer, reference',
  [
    (drift.proximal(0.5), fedprox(0.5)),
    (drift.scaffold(), scaffold()),
    (ss.no_reduction(), fedprox(0.0)),
  ],
  ids=['fedprox', 'scaffold', 'fedavg'],
)
def test_it_is_the_published_algorithm(reducer, reference):
  found = trained(reducer)
  for after, expected in zip(found, reference, strict=True):
    np.testing.assert_allclose(after, np.tile(expected, (N, 1)), atol=1e-5)


def test_unlike_workers_end_at_the_common_optimum_only_with_scaffold():
  off = {
    name: np.abs(trained(reducer)[-1] - BEST).max()
    for name, reducer in {
      'fedavg': ss.no_reduction(),
      'fedprox': drift.proximal(0.5),
      'scaffold': drift.scaffold(),
    }.items()
  }
  assert off['scaffold'] < 1e-4
  assert 0.01 < off['fedprox'] < off['fedavg']


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_a_gradient_that_is_not_finite_is_in_no_control_variate(dtype):
  reducer = drift.scaffold()

  def worker(grads):
    state = reducer.init(grads[0])
    for grad, sync in zip(grads, (False, False, True, True), strict=True):
      update, state = reducer.update(grad, state, sync=jnp.bool(sync))
      assert update.dtype == dtype
    return state

  grads = np.ones((2, 4, 4), np.float32)
  grads[1, 1] = np.nan
  grads[1, 2] = 3.0
  grads[1, 3] = np.nan  # Its round has no other: the variate stays.
  state = jax.vmap(worker, axis_name=ss.AXIS)(grads.astype(dtype))
  np.testing.assert_array_equal(state.own, [[1.0] * 4, [2.0] * 4])
  np.testing.assert_array_equal(state.common, [[1.5] * 4] * 2)
