"""Lazy aggregation against the published LAG-WK."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.sync import lazy
from tests.support.reduction import run
from tests.support.trajectory import train

N, SIZE, STEPS, RATE = 5, 8, 60, 0.2
RNG = np.random.default_rng(0)
# Workers whose curves are flat have gradients that hardly change.
CURVES = RNG.uniform(0.5, 1.0, size=(N, SIZE)) * np.logspace(-3, 0, N)[:, None]
GOALS = RNG.normal(size=(N, SIZE))


def rounded(x, bits):
  """The nearest multiples of a scale, from -m to m times, in each row."""
  most = 2 ** (bits - 1) - 1
  scale = np.abs(x).max(axis=1, keepdims=True) / most
  return np.round(x / np.where(scale > 0, scale, 1)) * scale


def lag_wk(xi, history, bits=None, patience=100):
  """Section 2.1, with a server that holds the sum of its gradients.

  With `bits`, it is LAQ.
  """
  last = np.zeros(N)  # Squared errors of rounding.
  silent = np.zeros(N)
  theta = [np.ones(SIZE)] * (history + 1)  # The newest is the last.
  sent = np.zeros((N, SIZE))
  for k in range(STEPS):
    grads = CURVES * (theta[-1] - GOALS)
    moves = [theta[-d] - theta[-d - 1] for d in range(1, history + 1)]
    bound = xi * sum(np.sum(move**2) for move in moves) / (RATE / N * N) ** 2
    change = grads - sent if bits is None else rounded(grads - sent, bits)
    errors = np.sum((grads - sent - change) ** 2, axis=1)
    sends = np.sum(change**2, axis=1) > bound + 3 * (errors + last)
    sends |= (k == 0) | (silent >= patience)
    silent = np.where(sends, 0, silent + 1)
    sent[sends] += change[sends]
    last[sends] = errors[sends]
    theta.append(theta[-1] - RATE * sent.mean(axis=0))
    yield theta[-1], sends


@pytest.mark.slow
def test_all_send_as_soon_as_there_are_other_workers():
  """Information about workers that have left no longer counts."""
  reducer = lazy.lazy(xi=100.0)
  update = jax.vmap(lambda *args: reducer.update(*args), axis_name=ss.AXIS)
  grads = jnp.asarray(GOALS)
  _, state = update(grads, jax.vmap(reducer.init)(grads))
  _, state = update(1.01 * grads, state)
  np.testing.assert_array_equal(state.renewed, 0)
  few = jax.tree.map(lambda x: x[:3], state)
  mean, few = update(grads[:3], few)
  np.testing.assert_allclose(mean[0], GOALS[:3].mean(axis=0), rtol=1e-6)
  np.testing.assert_array_equal(few.senders, 1)


@pytest.mark.parametrize(
  'xi, history, bits, patience',
  [
    (0.1, 10, None, 100),
    (0.4, 2, None, 100),
    (0, 10, None, 100),
    (0.1, 10, 8, 100),
    (0.4, 2, 4, 100),
    (0.4, 2, 4, 3),
  ],
)
def test_it_is_the_published_algorithm(xi, history, bits, patience):
  reducer = lazy.lazy(xi, history, bits=bits, patience=patience)
  strategy = ss.Strategy(ss.every(1), reducer=reducer)
  batch = jnp.float32(CURVES), jnp.float32(GOALS)
  sgd, start = optax.sgd(RATE), jnp.ones(SIZE)
  params, metrics = train(strategy, sgd, start, batch, STEPS)
  uploads = 0
  for k, (theta, sends) in enumerate(lag_wk(xi, history, bits, patience)):
    np.testing.assert_allclose(params[k], np.tile(theta, (N, 1)), atol=1e-5)
    np.testing.assert_allclose(metrics['senders'][k], sends.mean())
    assert (metrics['renewed'][k] == sends.any()).all()
    uploads += sends.sum()
  if xi:
    assert uploads < 0.7 * N * STEPS
  else:
    assert uploads == N * STEPS


@pytest.mark.parametrize('bits', [None, 4])
def test_a_gradient_that_is_not_finite_is_seen_by_all_and_kept_by_none(bits):
  grads = np.ones((3, N, 4), np.float32)
  grads[1, 2, 0] = np.nan
  grads[2] = 5
  means, states = run(lazy.lazy(bits=bits), grads)
  assert np.isnan(means[1]).all() and np.isfinite(means[2]).all()
  np.testing.assert_array_equal(states.mean[1], states.mean[0])
  # The reported bytes are the bytes sent, by the one worker.
  np.testing.assert_allclose(states.senders[:, 0], [1, 1 / N, 1])


def test_no_worker_is_silent_for_good_where_rounding_exceeds_the_difference():
  grads = np.ones((5, N, 256), np.float32)
  grads[..., 0] = 100  # The others are rounded to 0.
  means, states = run(lazy.lazy(bits=4, patience=2), 1e3 * grads)
  np.testing.assert_array_equal(states.renewed[:, 0], [1, 0, 0, 1, 0])
  assert (means[0] > 0).any()


def test_small_changes_of_half_precision_are_not_rounded_away():
  """In bfloat16, the sum would lose half of one worker's changes."""
  grads = np.ones((3, N, 4), np.float32)
  grads[1:, 0] = 1 + 2**-7
  _, states = run(lazy.lazy(xi=0.0), jnp.bfloat16(grads))
  np.testing.assert_allclose(states.mean[2], 1 + 2**-7 / N, rtol=1e-6)
