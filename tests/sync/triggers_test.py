"""Triggers without a gradient, and triggers made of triggers."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss
from tests.support.marks import slow
from tests.support.trajectory import reference, run


def voted(flags, vote_delay, vote_every, max_period):
  """The steps that synchronize, given the steps that any worker flags."""
  votes, since = np.zeros(len(flags), bool), 0
  for step in range(len(flags)):
    since += 1
    end = step + 1 - vote_delay  # Flags up to here are voted on.
    if end % vote_every == 0:
      flagged = flags[max(0, end - vote_every) : end].any()
      votes[step] = flagged or since >= max_period
    since *= not votes[step]
  return votes


@pytest.mark.parametrize('vote_delay', [0, 1])
@pytest.mark.parametrize('mapper', [slow('pmap'), 'vmap'])
@pytest.mark.parametrize('vote_every', [1, 3, slow(8)])
@pytest.mark.parametrize('max_period', [None, 5, slow(16)])
def test_a_lagging_rarer_or_overdue_vote_is_the_papers_moved_and_gathered(
  vote_delay, vote_every, max_period, mapper
):
  rng = np.random.default_rng(7)
  scale = rng.lognormal(sigma=0.7, size=(100, 4, 1))
  grads = (scale * rng.normal(size=(100, 4, 30))).astype(np.float32)
  expected = reference(grads, 0.04)
  # About one window in three reaches this delta.
  largest = np.sort(expected.max(axis=1))
  delta = float(largest[-100 // (3 * vote_every) :][:2].mean())
  flags = (expected >= delta).any(axis=1)
  votes = voted(flags, vote_delay, vote_every, max_period or math.inf)
  trigger = ss.selsync(
    delta, smoothing=None, vote_delay=vote_delay, vote_every=vote_every
  )
  states = run(
    ss.any_of(trigger, ss.max_interval(max_period)) if max_period else trigger,
    jnp.asarray(grads),
    mapper,
  )
  inner = [s.triggers[0] if max_period else s for s in states]
  np.testing.assert_allclose(
    np.stack([s.measure.change for s in inner]), expected, rtol=1e-5, atol=1e-5
  )
  np.testing.assert_array_equal(
    np.stack([s.sync for s in states]), np.tile(votes[:, None], (1, 4))
  )
  if max_period is None:
    assert 1 < votes.sum() < 100 // vote_every - 1


def test_a_bound_alone_is_local_sgd(mapper):
  grads = jnp.ones((20, 4, 2))
  trigger = ss.any_of(ss.selsync(math.inf, quorum=1.0), ss.max_interval(6))
  states = run(trigger, grads, mapper)
  assert [i for i, s in enumerate(states) if s.sync.all()] == [0, 6, 12, 18]


def test_an_overdue_vote_waits_for_a_finite_gradient():
  grads = jnp.ones((9, 4, 2)).at[3:5, 1].set(jnp.nan)
  trigger = ss.any_of(ss.selsync(math.inf), ss.max_interval(3))
  states = run(trigger, grads)
  assert [i for i, s in enumerate(states) if s.sync[0]] == [0, 5, 8]


@pytest.mark.parametrize('k', [1, 2, 7])
def test_max_interval_alone_is_every(k):
  grads = jnp.ones((20, 2, 1))
  syncs = [
    [bool(s.sync[0]) for s in run(trigger(k), grads)]
    for trigger in (ss.every, ss.max_interval)
  ]
  assert syncs[0] == syncs[1] == [(i + 1) % k == 0 for i in range(20)]


def test_triggers_of_triggers_are_the_same_as_all_in_one():
  grads = jnp.ones((12, 2, 1)).at[7:, 1].set(jnp.nan)
  vote, bound, period = ss.selsync(math.inf), ss.max_interval(3), ss.every(2)
  nested = run(ss.any_of(ss.any_of(vote, bound), period), grads)
  flat = run(ss.any_of(vote, bound, period), grads)
  assert [bool(s.sync[0]) for s in nested] == [bool(s.sync[0]) for s in flat]
  assert [i for i, s in enumerate(flat, 1) if s.sync[0]] == [1, 2, 4, 6]


def test_a_veto_reaches_through_a_trigger_around_the_one_that_votes(mapper):
  grads = np.ones((6, 4, 5), np.float32)
  grads[2] = np.nan
  states = run(
    ss.any_of(ss.min_interval(1, trigger=ss.selsync(0.3)), ss.max_interval(3)),
    jnp.asarray(grads),
    mapper,
  )
  synced = [bool(state.sync[0]) for state in states]
  assert synced == [True, False, False, True, False, False]
