"""Effects of a synchronization on the state of the local optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax.devices import mappers
from selsync_jax.sync import optimizer_state, wires

N = 3
PARAMS = {'w': jnp.ones((2, 3)), 'b': jnp.ones(3)}
OPTIMIZERS = {
  'momentum': optax.sgd(0.1, momentum=0.9),
  'adam': optax.adam(0.1),
  'clipped, decayed': optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(optax.cosine_decay_schedule(1.0, 9)),
  ),
  'if finite': optax.apply_if_finite(optax.adam(0.1), 5),
}
NAMES = {'momentum': ['trace'], 'adam': ['mu', 'nu']}
STEPS = 4


def trained(optimizer):
  """The state of each worker after some steps on its own gradients."""
  rng = np.random.default_rng(0)
  grads = jax.tree.map(
    lambda p: rng.normal(size=(N, STEPS, *p.shape)).astype(np.float32), PARAMS
  )

  def worker(grads):
    def step(state, grad):
      return optimizer.update(grad, state, PARAMS)[1], None

    return jax.lax.scan(step, optimizer.init(PARAMS), grads)[0]

  return mappers.Vmap(N).map_workers(worker)(grads)


def applied(policy, optimizer, state):
  """The optimizers' state after a synchronization."""

  def worker(state):
    fresh = optimizer.init(PARAMS)
    return policy.apply(state, fresh, policy.init(state))[0]

  return mappers.Pmap(N).map_workers(worker)(state)


def moment(state, name):
  """The leaves of a moment, [workers, ...]."""
  ((_, value),) = optax.tree.get_all_with_path(state, name)
  return [np.asarray(leaf) for leaf in jax.tree.leaves(value)]


def names(optimizer):
  return NAMES['momentum' if optimizer == 'momentum' else 'adam']


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_mean_averages_moments_and_leaves_counters(name):
  optimizer = OPTIMIZERS[name]
  before = trained(optimizer)
  after = applied(optimizer_state.mean(), optimizer, before)
  for which in names(name):
    for old, new in zip(
      moment(before, which), moment(after, which), strict=True
    ):
      assert (old[0] != old[1]).any()
      expected = np.broadcast_to(old.mean(0), old.shape)
      np.testing.assert_allclose(new, expected, rtol=1e-6)
  kept = [x for x in jax.tree.leaves(after) if x.dtype == jnp.int32]
  assert all((x == STEPS).all() or (x == 0).all() for x in kept)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_after_a_reset_the_next_update_equals_a_first_update(name):
  """Adam's bias correction of young moments restarts, too."""
  optimizer = OPTIMIZERS[name]
  state = applied(optimizer_state.reset(), optimizer, trained(optimizer))
  grad = jax.tree.map(lambda p: jnp.full((N, *p.shape), 0.3), PARAMS)

  def update(grad, state):
    return optimizer.update(grad, state, PARAMS)[0]

  def first(grad):
    return optimizer.update(grad, optimizer.init(PARAMS), PARAMS)[0]

  new = mappers.Vmap(N).map_workers(update)(grad, state)
  fresh = mappers.Vmap(N).map_workers(first)(grad)
  if name == 'clipped, decayed':  # The schedule of the rate continues.
    rate = optax.cosine_decay_schedule(1.0, 9)
    fresh = optax.tree.scale(rate(STEPS) / rate(0), fresh)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), new, fresh
  )


def test_some_moments_are_averaged_and_others_stay_local():
  optimizer = OPTIMIZERS['if finite']
  before = trained(optimizer)
  after = applied(optimizer_state.mean(only=['nu']), optimizer, before)
  for old, new in zip(moment(before, 'nu'), moment(after, 'nu'), strict=True):
    np.testing.assert_allclose(
      new, np.broadcast_to(old.mean(0), old.shape), rtol=1e-6
    )
  for old, new in zip(moment(before, 'mu'), moment(after, 'mu'), strict=True):
    np.testing.assert_array_equal(old, new)


def test_a_moment_alone_that_is_reset_leaves_the_count_of_steps():
  optimizer = OPTIMIZERS['adam']
  state = applied(
    optimizer_state.reset(only=['mu']), optimizer, trained(optimizer)
  )
  assert (state[0].count == STEPS).all()
  assert (state[0].nu['w'] > 0).all() and (state[0].mu['w'] == 0).all()


def test_averaged_moments_are_the_ones_said_to_be_sent():
  state = jax.eval_shape(OPTIMIZERS['adam'].init, PARAMS)
  (both,) = optimizer_state.mean().sends(state, N)
  (one,) = optimizer_state.mean(only=['nu']).sends(state, N)
  assert (both.nbytes, one.nbytes) == (2 * 36, 36)
  assert not optimizer_state.reset().sends(state, N)
  assert not optimizer_state.local().sends(state, N)


def test_an_optimizer_without_moments_sends_nothing():
  plain = optax.sgd(optax.constant_schedule(0.1))
  policy = optimizer_state.mean(wire=wires.bfloat16())
  state = trained(plain)
  assert not policy.sends(state, N) and policy.init(state) == ()
  jax.tree.map(
    np.testing.assert_array_equal, applied(policy, plain, state), state
  )


@pytest.mark.parametrize(
  'policy', [optimizer_state.mean, optimizer_state.reset]
)
def test_an_unknown_moment_is_refused_with_the_known_ones(policy):
  optimizer = OPTIMIZERS['clipped, decayed']
  message = "'momentum' is not a moment of this optimizer, which has mu, nu"
  with pytest.raises(ValueError, match=message):
    applied(policy(only=['momentum']), optimizer, trained(optimizer))
