"""FDA's estimates of the variance of the replicas, and its decisions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.devices import layout
from selsync_jax.sync.fda import sketch, squared_norm

DRAWS, WORKERS, SIZE = 1000, 4, 60


@functools.cache
def drawn():
  """Consensus before and after a synchronization, then the workers' drifts.

  The change of the consensus resembles the mean drift in half of the draws.
  """
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.normal(size=(DRAWS, *shape)).astype(np.float32)

  scale = rng.lognormal(sigma=3, size=(DRAWS, 1, 1)).astype(np.float32)
  common = rng.choice([0, 1, 10], size=(DRAWS, 1, 1)).astype(np.float32)
  drifts = scale * (normal(WORKERS, SIZE) + common * normal(1, SIZE))
  before, change = normal(SIZE), normal(SIZE)
  change[::2] = drifts[::2].mean(axis=1) + 0.01 * change[::2]
  return before, before + change, drifts


@functools.cache
def estimates(variant):
  """The estimates of the second round, and the drifts in float32."""
  trigger = ss.fda(0.0, variant)
  before, after, drifts = drawn()

  def worker(before, after, drift):
    first, second = {'w': before}, {'w': after}
    state = trigger.init(first)
    _, state = trigger.update({'w': drift}, state, first)
    updates, state = trigger.update({'w': drift}, state, second, synced=True)
    moved = optax.apply_updates(second, updates)['w']
    return state.estimate, moved - state.reference[0]

  over_workers = jax.vmap(worker, (None, None, 0), axis_name=ss.AXIS)
  estimate, drifts = jax.jit(jax.vmap(over_workers))(before, after, drifts)
  return np.asarray(estimate)[:, 0], np.asarray(drifts, np.float64)


def variance(drifts):
  spread = drifts - drifts.mean(axis=1, keepdims=True)
  return np.square(spread).sum(axis=2).mean(axis=1)


def test_the_linear_estimate_is_never_below_the_variance():
  estimate, drifts = estimates('linear')
  true = variance(drifts)
  # It is a difference: float32 rounds in proportion to the minuend.
  rounding = 1e-6 * np.square(drifts).sum(axis=2).mean(axis=1)
  assert (estimate >= true - rounding).all()
  assert (estimate[1::2] > true[1::2]).all()
  # If the consensus keeps its direction, the estimate is nearly the variance.
  assert np.median((estimate / true)[::2]) < 1.01


def test_the_naive_estimate_is_the_mean_squared_drift_an_upper_bound():
  naive, drifts = estimates('naive')
  np.testing.assert_allclose(
    naive, np.square(drifts).sum(axis=2).mean(axis=1), rtol=1e-5
  )
  assert (naive >= variance(drifts)).all()
  assert (naive * (1 + 1e-6) >= estimates('linear')[0]).all()


def test_the_sketch_is_near_the_variance_whatever_the_drift_has_in_common():
  estimate, drifts = estimates('sketch')
  true, mean = variance(drifts), np.square(drifts.mean(axis=1)).sum(axis=1)
  epsilon = 1 / np.sqrt(250)
  expected = true + mean * (1 - 1 / (1 + epsilon))
  assert np.quantile(np.abs(estimate - expected) / mean, 0.95) < 3 * epsilon


@pytest.mark.parametrize('size', [1, 250, 251, 10_000])
@pytest.mark.parametrize('heavy', [False, True])
def test_a_sketchs_row_is_unbiased_with_the_variance_of_the_theory(size, heavy):
  width, rng = 50, np.random.default_rng(1)
  vector = rng.normal(size=size)
  if heavy:  # A few elements have all the weight, at a stride of the width.
    vector *= np.where(np.arange(size) % width == 3, 30, 1)
  vector = (vector / np.linalg.norm(vector)).astype(np.float32)

  vector = jnp.asarray(vector)
  sketches = np.concatenate([sketch(vector, 32, width, i) for i in range(12)])
  norms = np.square(sketches).sum(axis=1)
  deviation = np.sqrt(2 / width)
  assert abs(norms.mean() - 1) < 4 * deviation / np.sqrt(norms.size) + 1e-5
  assert norms.std() < 1.15 * deviation
  assert abs(squared_norm(sketch(vector, 32, width, 7)) - 1) < deviation


def test_a_sketch_of_the_mean_is_the_mean_of_the_sketches():
  vectors = np.random.default_rng(2).normal(size=(4, 999)).astype(np.float32)
  sketches = [sketch(jnp.asarray(v), 5, 250, 3) for v in vectors]
  np.testing.assert_allclose(
    np.mean(sketches, axis=0),
    sketch(jnp.asarray(vectors.mean(axis=0)), 5, 250, 3),
    atol=1e-5,
  )


def train(tx, targets, mapper, steps=24, optimizer=None):
  """Gradient descent of each worker to its target; flags and variances."""
  chain = optax.chain(optimizer or optax.sgd(0.1), tx)

  def step(carry, _):
    w, state = carry
    updates, state = chain.update(w - carry_target, state, w)
    w = optax.apply_updates(w, updates)
    spread = jax.lax.pmean(jnp.sum(jnp.square(w)), ss.AXIS)
    spread -= jnp.sum(jnp.square(jax.lax.pmean(w, ss.AXIS)))
    fda = state[-1]
    w = ss.synchronize(fda.sync, w)
    return (w, state), (fda.sync, fda.safe, fda.estimate, spread)

  def worker(target):
    nonlocal carry_target
    carry_target = target
    w = jnp.zeros_like(target)
    return jax.lax.scan(step, (w, chain.init(w)), length=steps)[1]

  carry_target = None
  chosen = layout.choose(mapper, len(targets))
  return jax.device_get(chosen.map_workers(worker)(targets))


@pytest.mark.parametrize('variant', ['naive', 'linear', 'sketch'])
def test_at_the_end_of_a_chain_it_talks_where_the_variance_exceeds_theta(
  variant, mapper
):
  targets = jnp.asarray(np.random.default_rng(3).normal(size=(4, 30)))
  theta = 0.5
  sync, safe, estimate, spread = train(
    ss.fda(theta, variant), targets.astype(jnp.float32), mapper
  )
  assert safe.all() and 2 < sync[0].sum() < 20
  np.testing.assert_array_equal(sync, estimate > theta)
  np.testing.assert_array_equal(estimate, np.tile(estimate[:1], (4, 1)))
  if variant != 'sketch':
    assert (estimate >= spread - 1e-5).all()
    assert (spread <= theta)[~sync].all()


def test_a_drift_that_is_not_finite_vetoes_until_it_is(mapper):
  poison = optax.GradientTransformation(
    lambda params: jnp.int32(0),
    lambda updates, count, params=None: (
      jnp.where((count == 5) & (jax.lax.axis_index(ss.AXIS) == 2), jnp.inf, 0)
      + updates,
      count + 1,
    ),
  )
  skipped = optax.apply_if_finite(optax.sgd(0.1), 100)
  for optimizer, lasts in [(skipped, False), (optax.sgd(0.1), True)]:
    sync, safe, _, _ = train(
      ss.fda(0.0),
      jnp.arange(4.0)[:, None],
      mapper,
      steps=10,
      optimizer=optax.chain(poison, optimizer),
    )
    assert sync[:, :5].all() and safe[:, :5].all()
    assert (safe[:, 5:] == (not lasts)).all()
    assert (sync == safe).all()


def test_it_needs_the_parameters():
  trigger = ss.fda(1.0)
  state = trigger.init(jnp.zeros(2))
  with pytest.raises(ValueError, match='fda needs params'):
    trigger.update(jnp.zeros(2), state)
