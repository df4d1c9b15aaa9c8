"""SelSync's core against the paper, transcribed in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from tests.support.trajectory import loop, reference, run


@pytest.mark.parametrize('count', [1, 4, 16])
@pytest.mark.parametrize('quorum', [None, 0.5, 1.0])
def test_change_and_vote_equal_the_papers_equation(count, quorum):
  rng = np.random.default_rng(count)
  scale = rng.lognormal(sigma=0.7, size=(200, count, 1))
  grads = (scale * rng.normal(size=(200, count, 30))).astype(np.float32)
  expected = reference(grads, count / 100)
  needed = max(1, int(np.ceil((quorum or 0) * count)))
  # Half of the steps reach this delta, halfway to the next change.
  reached = np.sort(np.sort(expected, axis=1)[:, -needed])
  delta = float(reached[99:101].mean())
  trigger = ss.selsync(delta, quorum=quorum, smoothing=None)
  states = run(trigger, jnp.asarray(grads))
  change = np.stack([s.measure.change for s in states])
  np.testing.assert_allclose(change, expected, rtol=1e-5, atol=1e-5)
  votes = np.sum(expected >= delta, axis=1) >= needed
  assert votes.sum() == 100
  for worker in range(count):
    np.testing.assert_array_equal([s.sync[worker] for s in states], votes)


def test_a_veto_in_a_window_outlasts_its_flags():
  grads = spike(4, value=100.0, steps=9)
  grads = grads.at[3, 2, 0].set(np.nan)
  states = run(ss.selsync(0.3, vote_every=3), grads)
  assert [bool(s.sync[0]) for s in states] == [i == 2 for i in range(9)]


def spike(at, worker=1, value=10.0, steps=5):
  grads = np.ones((steps, 4, 2), np.float32)
  grads[at, worker] = value
  return jnp.asarray(grads)


def test_one_vote_is_enough(mapper):
  states = run(ss.selsync(0.3), spike(3), mapper)
  assert [s.sync.tolist() for s in states] == [
    [i in (0, 3)] * 4 for i in range(5)
  ]
  voters = np.flatnonzero(states[3].measure.change >= 0.3)
  assert voters.tolist() == [1]


def test_a_quorum_of_half_needs_two_of_four(mapper):
  grads = spike(2) + spike(3) + spike(3, worker=2)
  states = run(ss.selsync(0.3, quorum=0.5, smoothing=0.1), grads, mapper)
  assert [bool(s.sync[0]) for s in states] == [True, False, False, True, False]


def test_a_quorum_rounds_up_but_not_past_its_own_product():
  # 0.7 * 10 is 7.000000000000001 in floating point.
  grads = jnp.ones((2, 10, 1)).at[1, :7].set(10.0)
  assert run(ss.selsync(0.3, quorum=0.7), grads)[1].sync.all()
  assert not run(ss.selsync(0.3, quorum=0.71), grads)[1].sync.any()


def test_delta_zero_synchronizes_always_and_infinity_only_at_first():
  rng = np.random.default_rng(0)
  grads = jnp.asarray(rng.normal(size=(20, 4, 3)), jnp.float32)
  assert all(s.sync.all() for s in run(ss.selsync(0), grads))
  sync = [s.sync.any() for s in run(ss.selsync(float('inf')), grads)]
  assert sync == [True] + [False] * 19


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_reported_and_vetoes_the_vote(
  bad, mapper
):
  grads = spike(2) + spike(3, worker=0, value=100.0)
  grads = grads.at[2, 3, 1].set(bad)
  states = run(ss.selsync(0.3, smoothing=None), grads, mapper)
  # Worker 1 votes at step 2; worker 3's gradient vetoes the vote.
  assert [i for i, s in enumerate(states) if s.sync.any()] == [0, 3]
  assert np.isnan(states[2].measure.change).nonzero()[0].tolist() == [3]
  for state in states[3:]:
    assert np.isfinite(state.measure.change).all()
    assert np.isfinite(state.measure.ewma).all()


@jax.grad
def gradient(w, batch):
  x, y = batch
  return jnp.mean((x @ w - y) ** 2)


RNG = np.random.default_rng(1)
X = RNG.normal(size=(50, 4, 8, 5)).astype(np.float32)
Y = X @ np.arange(1.0, 6.0) + RNG.normal(size=X.shape[:3])
BATCHES = [*zip(X, Y.astype(np.float32), strict=True)]
START = jnp.zeros((4, 5))


def test_delta_zero_with_plain_sgd_is_bsp(mapper):
  sgd = optax.sgd(0.05)
  selsync = optax.chain(ss.selsync(0.0), sgd)
  bsp = optax.chain(ss.selsync(float('inf')), ss.all_reduce(), sgd)
  for (one, _), (other, _) in zip(
    loop(selsync, gradient, START, BATCHES, mapper),
    loop(bsp, gradient, START, BATCHES, mapper),
    strict=True,
  ):
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize('optimizer', [optax.sgd(0.05), optax.adamw(0.05)])
def test_delta_infinity_is_independent_loops_after_the_first_step(optimizer):
  selsync = optax.chain(ss.selsync(float('inf')), optimizer)
  together = [w for w, _ in loop(selsync, gradient, START, BATCHES, 'pmap')]

  @jax.jit
  def step(w, state, batch):
    updates, state = optimizer.update(gradient(w, batch), state, w)
    return optax.apply_updates(w, updates), state

  for worker in range(4):
    alone, state = START[worker], optimizer.init(START[worker])
    for found, (x, y) in zip(together, BATCHES, strict=True):
      alone, state = step(alone, state, (x[worker], y[worker]))
      if found is together[0]:  # The first step synchronizes.
        alone = jnp.asarray(found[worker])
      np.testing.assert_array_equal(found[worker], alone)


def test_workers_are_bit_identical_after_a_vote_and_differ_otherwise(mapper):
  tx = optax.chain(ss.selsync(0.05, smoothing=0.04), optax.adam(0.05))
  syncs = []
  for w, sync in loop(tx, gradient, START, BATCHES, mapper):
    assert (w == w[0]).all() == sync.all() == sync.any()
    syncs.append(sync.all())
  assert 1 < sum(syncs) < len(syncs)


def test_delta_may_be_a_schedule_or_a_hyperparameter_that_is_traced():
  grads = spike(2) + 3 * spike(4)  # Changes of about 0.7 and 0.9 at 2 and 4.
  constant = run(ss.selsync(0.3), grads)

  def falling(step):
    return jnp.where(step < 3, 10.0, 0.3)

  scheduled = run(ss.selsync(falling), grads)
  injected = optax.inject_hyperparams(
    ss.selsync, static_args=('vote_delay', 'vote_every')
  )(delta=0.3)
  syncs = [bool(s.sync[0]) for s in constant]
  assert syncs == [True, False, True, False, True]
  assert [bool(s.sync[0]) for s in scheduled] == [True, *[False] * 3, True]
  assert [bool(s.inner_state.sync[0]) for s in run(injected, grads)] == syncs
