"""The decision that a custom training loop reads from the optimizer's state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from tests.support.blocks import rows_of, shard_map
from tests.support.marks import slow
from tests.support.trajectory import loop

SGD = optax.sgd(0.1)
GRADS = jnp.arange(8.0).reshape(4, 2)  # A row per worker.


def train(tx, calls, mapper='vmap'):
  """Parameters and flag of each worker after each call."""
  grads = (GRADS * (10.0 if i == 17 else 1.0) for i in range(calls))
  return loop(tx, lambda w, grad: grad, jnp.zeros_like(GRADS), grads, mapper)


def flags(*args):
  return [bool(sync.all()) for _, sync in train(*args) if sync.all() == sync[0]]


def multi_steps(trigger, k=8):
  return optax.MultiSteps(optax.chain(trigger, SGD), every_k_schedule=k)


@pytest.mark.parametrize(
  'trigger',
  [ss.selsync(0.3), ss.any_of(ss.selsync(0.3), ss.max_interval(9))],
  ids=['selsync', 'any_of'],
)
def test_under_multi_steps_one_vote_averages_once(trigger, mapper):
  found = list(train(multi_steps(trigger), 32, mapper))
  # The first update, and the update that accumulates the large gradient.
  asked = [i for i, (_, sync) in enumerate(found) if sync.any()]
  assert asked == [7, 23]
  for i, (w, sync) in enumerate(found):
    assert sync.all() == sync.any() == (i in asked)
    assert (w == w[0]).all() == (i < 15 or 23 <= i < 31)


def test_multi_steps_is_a_step_of_the_accumulated_gradient():
  every = [w for w, _ in train(multi_steps(ss.every(2), 3), 12)]
  plain = [w for w, _ in train(optax.chain(ss.every(2), SGD), 4)]
  np.testing.assert_allclose(every[2::3], plain, rtol=1e-6)


def test_a_schedule_of_multi_steps_may_end_accumulation():
  tx = multi_steps(ss.every(1), lambda step: jnp.where(step < 2, 3, 1))
  assert [i for i, flag in enumerate(flags(tx, 9)) if flag] == [2, 5, 6, 7, 8]


@pytest.mark.parametrize(
  'trigger',
  [
    ss.budgeted(ss.selsync(0.3), lssr=0.5),
    ss.any_of(ss.selsync(0.3), ss.max_interval(4)),
    *(
      slow(trigger)
      for trigger in (
        ss.selsync(0.3),
        ss.selsync(0.3, vote_delay=1),
        ss.selsync(0.3, vote_every=2),
        ss.min_interval(3, trigger=ss.selsync(0.3)),
        ss.every(2),
      )
    ),
  ],
  ids=str,
)
def test_steps_scanned_under_shard_map_decide_like_steps_of_a_loop(trigger):
  tx = optax.chain(trigger, SGD)

  def step(carry, grad):
    w, state = carry
    updates, state = tx.update(grad, state, w)
    sync = ss.decision(state)
    w = ss.synchronize(sync, optax.apply_updates(w, updates))
    return (w, state), (sync, w)

  def block(w, grads):
    w, grads = w.squeeze(0), grads.squeeze(0)
    _, (sync, w) = jax.lax.scan(step, (w, tx.init(w)), grads)
    return sync, w[:, None]

  factors = np.where(np.arange(20) == 17, 10.0, 1.0).astype(np.float32)
  grads = np.asarray(GRADS)[:, None] * factors[:, None]
  scanned = shard_map(block, out_specs=(jax.P(), jax.P(None, ss.AXIS)))
  sync, w = scanned(jnp.zeros_like(GRADS), grads)
  expected = list(train(tx, 20))
  assert sync.tolist() == [bool(flag.all()) for _, flag in expected]
  np.testing.assert_allclose(w, [w for w, _ in expected], rtol=1e-6)


@pytest.mark.parametrize(
  'tx',
  [
    optax.chain(ss.every(2), SGD),
    optax.chain(optax.clip(1.0), ss.every(2), SGD),
    optax.named_chain(('trigger', ss.every(2)), ('sgd', SGD)),
    optax.chain(ss.any_of(ss.every(2), ss.every(4)), SGD),
    optax.chain(ss.min_interval(2, trigger=ss.every(2)), SGD),
    optax.inject_hyperparams(
      lambda rate: optax.chain(ss.every(2), optax.sgd(rate))
    )(rate=0.1),
    optax.chain(ss.every(2), optax.apply_if_finite(SGD, 5)),
    optax.chain(SGD, ss.every(2)),
  ],
)
def test_the_outermost_triggers_decision_is_found_in_any_chain(tx):
  assert flags(tx, 6)[1::2] == [True] * 3


@pytest.mark.parametrize(
  'wrap, message',
  [
    (lambda tx: optax.apply_if_finite(tx, 5), 'ApplyIfFinite does not run'),
    (
      lambda tx: optax.conditionally_transform(tx, lambda step: step % 2 == 0),
      'ConditionallyTransform does not run',
    ),
    (
      lambda tx: optax.conditionally_mask(tx, lambda step: step % 2 == 0),
      'ConditionallyMask does not run',
    ),
    (lambda tx: optax.contrib.sam(tx, SGD), 'SAM does not run'),
    (
      lambda tx: optax.MultiSteps(
        tx, 2, should_skip_update_fn=optax.skip_not_finite
      ),
      'MultiSteps with should_skip_update_fn skips calls',
    ),
    (lambda tx: optax.MultiSteps(optax.apply_if_finite(tx, 5), 2), 'ApplyIf'),
  ],
)
def test_a_wrapper_that_leaves_out_calls_is_refused_around_a_trigger(
  wrap, message
):
  state = wrap(optax.chain(ss.selsync(0.3), SGD)).init(GRADS)
  with pytest.raises(ValueError, match=f'^{message}'):
    ss.decision(state)


def test_fda_in_multi_steps_is_the_last_of_its_chain():
  state = multi_steps(ss.fda(0.1)).init(GRADS)
  with pytest.warns(UserWarning, match=r'^fda measures updates'):
    ss.decision(state)
  state = optax.MultiSteps(optax.chain(SGD, ss.fda(0.1)), 2).init(GRADS)
  assert not ss.decision(state)


def test_fda_decides_at_the_end_of_a_chain_and_of_its_parts():
  state = optax.chain(SGD, optax.chain(optax.scale(1.0), ss.fda(0.1)))
  assert not ss.decision(state.init(GRADS))


@pytest.mark.parametrize('triggers', [0, 2])
def test_a_chain_without_exactly_one_trigger_is_refused(triggers):
  state = optax.chain(*[ss.every(2)] * triggers, SGD).init(GRADS)
  with pytest.raises(ValueError, match=f'one trigger, .* has {triggers};'):
    ss.decision(state)


def test_multi_steps_runs_under_shard_map():
  tx = multi_steps(ss.selsync(0.3), 2)

  def step(w, state, grad):
    updates, state = tx.update(grad, state, w)
    sync = ss.decision(state)
    return ss.synchronize(sync, optax.apply_updates(w, updates)), state, sync

  mapped, w = shard_map(rows_of(step)), jnp.zeros_like(GRADS)
  state, found = jax.vmap(tx.init)(w), []
  for _ in range(5):
    w, state, sync = mapped(w, state, GRADS)
    found.append(sync.tolist())
  assert found == [[i == 1] * 4 for i in range(5)]


@pytest.mark.parametrize(
  'trigger', [ss.selsync(0.3), ss.any_of(ss.every(3), ss.selsync(0.3))]
)
def test_a_trigger_that_measures_behind_a_clip_says_so(trigger):
  clip = optax.clip_by_global_norm(1.0)
  with pytest.warns(UserWarning, match='put it first in the chain') as said:
    flags(optax.chain(clip, trigger, SGD), 3)
  assert len(said) == 1
  with pytest.warns(UserWarning, match='put it first in the chain'):
    ss.decision(optax.chain(clip, optax.chain(trigger, SGD)).init(GRADS))
  flags(optax.chain(trigger, clip, SGD), 3)
  flags(optax.chain(clip, ss.every(2), SGD), 3)
