"""A training step in two programs, with the vote between them."""

import jax
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.devices import voting
from selsync_jax.devices.mappers import Pmap
from tests.support import island_loop as loop


def create_step(*triggers):
  tx = optax.chain(*triggers, optax.adam(0.05))

  def step(state, batch):
    params, opt_state = state
    grads = jax.grad(loop.loss)(params, *batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    sync = ss.decision(opt_state)
    params = ss.synchronize(sync, optax.apply_updates(params, updates))
    return (params, opt_state), {'sync': sync, 'grads': grads['v']}

  return step, (loop.START, tx.init(loop.START))


def run(mapper, step, start):
  state, seen = mapper.replicate(lambda: start), []
  for batch in zip(loop.X, loop.Y, strict=True):
    state, metrics = step(state, batch)
    seen.append(jax.device_get((state[0], metrics)))
  return seen


def test_whoever_counts_the_votes_the_steps_are_the_same():
  mapper = Pmap(loop.N)
  step, start = create_step(ss.budgeted(ss.selsync(0.3, quorum=0.6), lssr=0.7))
  counted = []

  def by_hand(ballots):
    counted.append(own := np.asarray(ballots))
    return np.full_like(own, own.sum())

  whole = run(mapper, mapper.map_workers(step), start)
  ways = voting.by_devices(mapper), by_hand
  devices, hand = (
    run(mapper, voting.cut_at_vote(step, mapper, lambda way=way: way), start)
    for way in ways
  )
  assert len(counted) == loop.STEPS
  assert 1 < sum(metrics['sync'].all() for _, metrics in whole) < loop.STEPS
  jax.tree.map(np.testing.assert_array_equal, devices, hand)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, 2e-6, 1e-7), devices, whole
  )


@pytest.mark.parametrize(
  'trigger',
  [
    ss.every(3),
    ss.selsync(0.3, lag=1),
    ss.selsync(0.3, vote_every=2),
    ss.any_of(ss.selsync(0.3), ss.selsync(0.4)),
  ],
  ids=str,
)
def test_a_step_that_waits_for_no_vote_or_for_several_is_one_program(trigger):
  mapper = Pmap(loop.N)
  step, start = create_step(trigger)
  cut = run(mapper, voting.cut_at_vote(step, mapper, pytest.fail), start)
  whole = run(mapper, mapper.map_workers(step), start)
  jax.tree.map(np.testing.assert_array_equal, cut, whole)
