"""Parameters that an optimizer holds in its own state, or never changes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.devices import mappers
from selsync_jax.sync.copies import Leaves, parameter_copies
from selsync_jax.training.start import resize
from selsync_jax.training.step import init_state, train_step

PARAMS = {'w': jnp.linspace(0.5, 2.0, 6).reshape(3, 2), 'b': jnp.zeros(2)}
HALF = optax.tree.cast(PARAMS, jnp.bfloat16)
FREE = optax.contrib.schedule_free_sgd(0.1)


def with_masters(inner):
  """Updates float32 copies; the parameters are their rounded values."""

  def init(params):
    masters = optax.tree.cast(params, jnp.float32)
    return {'masters': masters, 'inner': inner.init(masters)}

  def update(grads, state, params):
    masters = state['masters']
    grads = optax.tree.cast(grads, jnp.float32)
    updates, new = inner.update(grads, state['inner'], masters)
    masters = optax.apply_updates(masters, updates)
    rounded = optax.tree.cast_like(masters, params)
    change = optax.tree.sub(rounded, params)
    return change, {'masters': masters, 'inner': new}

  return optax.GradientTransformation(init, update)


@pytest.mark.parametrize(
  'optimizer, params, names',
  [
    (FREE, PARAMS, ['z/b', 'z/w']),
    (optax.chain(ss.selsync(0.3), FREE), PARAMS, ['1/z/b', '1/z/w']),
    (optax.chain(FREE, ss.fda(0.1)), PARAMS, ['0/z/b', '0/z/w']),
    (with_masters(optax.adam(0.1)), HALF, ['masters/b', 'masters/w']),
    (optax.adamw(0.1), PARAMS, []),
    (optax.adagrad(0.1, initial_accumulator_value=1.0), PARAMS, []),
    (optax.contrib.prodigy(), PARAMS, []),  # It holds the initial parameters.
    (optax.noisy_sgd(0.1, key=0), PARAMS, []),  # Its state has a key.
    (optax.contrib.muon(0.1), PARAMS, []),
  ],
)
def test_parameters_that_an_optimizer_holds_are_named(optimizer, params, names):
  assert [*parameter_copies(optimizer, params).names] == names


def test_no_update_is_compiled_to_find_the_held_parameters():
  ran = []

  def update(grads, state, params):
    jax.debug.callback(lambda: ran.append('update'))
    return FREE.update(grads, state, params)

  watched = optax.GradientTransformation(FREE.init, update)
  assert [*parameter_copies(watched, PARAMS).names] == ['z/b', 'z/w']
  jax.effects_barrier()
  assert not ran


def test_copies_taken_out_of_the_state_are_put_back():
  copies, state = parameter_copies(FREE, PARAMS), FREE.init(PARAMS)
  taken = copies.take(state)
  jax.tree.map(np.testing.assert_array_equal, taken, jax.tree.leaves(state.z))
  new = copies.put(state, [x + 1 for x in taken])
  np.testing.assert_array_equal(new.z['w'], PARAMS['w'] + 1)
  assert copies.rest(new).z == {'b': None, 'w': None}
  again = copies.put_rest(new, copies.rest(state))
  jax.tree.map(np.testing.assert_array_equal, again, new)


def drift(params, model_state, target, key):
  loss = jnp.sum((params['w'] - target) ** 2) + jnp.sum(params['b'] ** 2)
  return loss, ({'loss': loss}, model_state)


def spread(tree):
  return max(
    float(np.ptp(np.asarray(x), 0).max()) for x in jax.tree.leaves(tree)
  )


@pytest.mark.parametrize(
  'averager',
  [
    ss.mean(),
    ss.mean(wire=ss.wires.int8()),
    ss.outer(optax.sgd(0.7, momentum=0.9, nesterov=True)),
  ],
  ids=str,
)
@pytest.mark.parametrize(
  'policy', [ss.optimizer_state.local(), ss.optimizer_state.reset()]
)
def test_an_average_in_the_trainer_outlasts_the_next_update(averager, policy):
  """Equal targets and parameters give equal gradients after the average."""
  optimizer = optax.contrib.schedule_free_sgd(0.1)
  strategy = ss.Strategy(ss.every(4), averager, optimizer_state=policy)
  copies = parameter_copies(optimizer, PARAMS)
  start = init_state(PARAMS, {}, strategy, optimizer, copies=copies)
  mapper = mappers.Vmap(4)
  step = mapper.map_workers(train_step(drift, strategy, optimizer, seed=0))
  state = mapper.replicate(lambda: start)
  targets = jnp.arange(4.0)
  for i in range(5):
    state, _ = step(state, targets if i < 4 else jnp.ones(4))
    if i == 2:
      assert spread(state.params) > 0.1
  assert spread(state.params) == spread(copies.take(state.opt_state)) == 0


def test_held_parameters_count_as_sent():
  strategy = ss.Strategy(ss.every(4), ss.mean())
  copies = parameter_copies(FREE, PARAMS)
  state = init_state(PARAMS, {}, strategy, FREE, copies=copies)
  (collective,) = strategy.sends(state.shared, 4, state.moments)
  assert collective.nbytes == 2 * 8 * 4


@pytest.mark.parametrize(
  'strategy',
  [
    ss.Strategy(ss.every(2), ss.mean()),
    ss.Strategy(ss.every(1), reducer=ss.all_reduce()),
    ss.Strategy(ss.fda(0.1), ss.outer(optax.sgd(0.7, momentum=0.9))),
  ],
  ids=['mean', 'all_reduce', 'fda, outer'],
)
def test_frozen_parameters_keep_their_bits_and_are_not_sent(strategy):
  """The mean of three equal values may differ from them."""
  params = {'b': jnp.linspace(0.1, 0.9, 500), 'w': PARAMS['w']}
  optimizer = optax.partition(
    {'train': optax.sgd(0.1), 'freeze': optax.scale(0.0)},
    {'b': 'freeze', 'w': 'train'},
  )
  start = init_state(
    params, {}, strategy, optimizer, frozen=Leaves(('b',), (0,))
  )
  mapper = mappers.Vmap(3)
  step = mapper.map_workers(train_step(drift, strategy, optimizer, seed=0))
  state = mapper.replicate(lambda: start)
  for _ in range(4):
    state, metrics = step(state, jnp.arange(3.0))
  assert metrics['synced'].all()
  assert spread(state.params) == 0
  np.testing.assert_array_equal(state.params['b'][0], params['b'])
  assert (np.asarray(state.params['w'])[0] != params['w']).all()
  sent = strategy.sends(start.shared, 3, start.moments)
  assert max(each.nbytes for each in sent) == 4 * 6


def test_another_number_of_workers_gets_the_mean_of_copies_and_frozen_bits():
  strategy = ss.Strategy(ss.every(2), ss.mean())
  copies, frozen = parameter_copies(FREE, PARAMS), Leaves(('w',), (1,))
  start = init_state(PARAMS, {}, strategy, FREE, frozen=frozen, copies=copies)
  saved = mappers.Vmap(3).stack(start)
  rows = jnp.arange(3.0)[:, None]
  moved = [x + rows if x.ndim == 2 else x for x in copies.take(saved.opt_state)]
  saved = saved.replace(opt_state=copies.put(saved.opt_state, moved))
  fresh = mappers.Vmap(2).stack(start)
  new = resize(saved, fresh, strategy, range(2), 'clone', 10)
  np.testing.assert_array_equal(new.opt_state.z['b'], np.ones((2, 2)))
  np.testing.assert_array_equal(new.params['w'], [PARAMS['w']] * 2)
