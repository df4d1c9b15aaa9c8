"""The measured change of a gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss


def test_the_measure_sees_all_leaves_in_any_dtype_and_passes_them_on():
  grads = {'a': jnp.full((2, 3), 2.0), 'b': jnp.full(4, 3.0, jnp.bfloat16)}
  tx = ss.measure(0.5)
  updates, state = tx.update(grads, tx.init(grads), loss=None)
  assert updates is grads
  assert state.ewma == 6 * 4 + 4 * 9
  assert state.ewma.dtype == jnp.float32


SCALES = (1e-15, 1.0, 1e15)


METER = ss.measure(0.25)
UPDATE = jax.jit(METER.update)


def changes_of(gradients):
  """Changes by the paper's equation, in float64, and as measured."""
  state, past, expected, measured = METER.init(gradients[0]), None, [], []
  for gradient in gradients:
    x = float(np.sum(np.float64(gradient) ** 2))
    ewma = x if past is None else 0.25 * x + 0.75 * past
    expected.append(np.inf if past is None else abs(ewma - past) / past)
    past = ewma
    _, state = UPDATE(gradient, state)
    measured.append(float(state.change))
  return expected, measured


@pytest.mark.parametrize('scale', SCALES)
@pytest.mark.parametrize('next_scale', SCALES)
def test_the_change_follows_the_equation_at_any_scale(scale, next_scale):
  rng = np.random.default_rng(0)
  scales = np.repeat([scale, next_scale, scale], 6)
  gradients = [np.float32(rng.normal(size=100) * s) for s in scales]
  expected, measured = changes_of(gradients)
  # Float32 has no number for a change of more than 3e38.
  expected = [np.inf if x > 3e38 else x for x in expected]
  np.testing.assert_allclose(measured, expected, rtol=1e-4, atol=1e-6)


def test_squares_beyond_float32_count_as_not_finite_or_as_zero():
  ones = np.ones(3, np.float32)
  _, past = UPDATE(ones, METER.init(ones))
  _, large = UPDATE(1e20 * ones, past)
  assert np.isnan(large.change)
  assert large.ewma == past.ewma
  _, small = UPDATE(1e-25 * ones, past)
  _, zero = UPDATE(0 * ones, past)
  assert small == zero


def test_a_step_that_measures_can_be_differentiated():
  def after(w):
    updates, state = METER.update(w**2, METER.init(w))
    return jnp.sum(updates) + state.ewma

  w = jnp.array([1.0, 2.0])
  np.testing.assert_array_equal(jax.grad(after)(w), 2 * w)


def test_an_average_that_is_not_finite_restarts():
  gradient = np.ones(3, np.float32)
  tx = ss.measure(0.5)
  state = tx.init(gradient)._replace(
    count=jnp.int32(5), ewma=jnp.float32(np.inf)
  )
  changes = []
  for _ in range(2):
    _, state = tx.update(gradient, state)
    changes.append(state.change)
  assert changes == [np.inf, 0]


@pytest.mark.parametrize(
  'first, early', [(0.0, [np.inf, 0]), (np.nan, [np.nan, np.nan])]
)
def test_gradients_without_a_norm_are_no_past(first, early):
  state, changes = METER.init(np.ones(3, np.float32)), []
  for scale in (first, first, 2, 2, 2):
    _, state = UPDATE(np.full(3, scale, np.float32), state)
    changes.append(float(state.change))
  np.testing.assert_array_equal(changes, [*early, np.inf, 0, 0])
