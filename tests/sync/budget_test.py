"""A trigger's threshold follows the budget, for any measurement."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.sync.traffic import Traffic
from tests.support.trajectory import run

STEPS = 1200


class ComparedState(NamedTuple):
  """State of `compared`."""

  largest: Any
  sync: Any


def compared(threshold=0.3, **traits):
  """A trigger whose measurement is the update itself."""

  def init(params):
    return ComparedState(jnp.float32(0), jnp.bool(False))

  def update(updates, state, params=None, *, threshold, **extra_args):
    largest = jax.lax.pmax(updates, ss.AXIS)
    return updates, ComparedState(largest, largest >= threshold)

  traits = {'compared': lambda state: state.largest} | traits
  return ss.Trigger(init, update, threshold=threshold, **traits)


def stream(phases, sigma=0.7, workers=4):
  """Measurements of each worker, whose scale changes from phase to phase."""
  rng = np.random.default_rng(0)
  scale = np.repeat(phases, STEPS // len(phases))[:, None]
  return (scale * rng.lognormal(0, sigma, (STEPS, workers))).astype(np.float32)


STREAMS = {
  'one scale': [1.0],
  'up by 1000': [1.0, 1000.0],
  'up and down by 1000': [1.0, 1000.0, 1.0, 0.001, 1.0, 1.0],
  'far from the start': [1e-4],
}


@pytest.mark.parametrize('lssr', [0.8, 0.9, 0.95])
@pytest.mark.parametrize('phases', STREAMS)
def test_the_budget_is_met_over_the_run_and_over_every_later_quarter(
  lssr, phases
):
  trigger = ss.budgeted(compared(), lssr=lssr)
  states = run(trigger, jnp.asarray(stream(STREAMS[phases])))
  synced = np.array([state.sync for state in states])
  assert (synced == synced[:, :1]).all()
  synced = synced[:, 0]
  assert abs(1 - synced.mean() - lssr) < 0.03
  quarter = STEPS // 4
  for start in range(quarter, STEPS - quarter + 1, 10):
    found = 1 - synced[start : start + quarter].mean()
    assert abs(found - lssr) < 0.1, start


@pytest.mark.parametrize('gain', [0.1, 1.0, 3.0])
def test_the_threshold_moves_in_proportion_to_the_excess_of_the_rate(gain):
  trigger = ss.budgeted(compared(), lssr=0.85, gain=gain)
  states = run(trigger, jnp.asarray(stream(STREAMS['up and down by 1000'])))
  synced = np.array([state.sync[0] for state in states])
  logs = np.array([state.log_threshold[0] for state in states])
  # A step's outcome moves the threshold of the next step.
  excess = np.cumsum(synced[1:-1] - 0.15)
  np.testing.assert_allclose(logs[2:] - logs[1], gain * excess, atol=2e-3)


def steered(changes, lssr):
  """The controller with a falling gain, from its description."""
  synced, threshold, count, debt = [True], changes[0], 0, 0.0
  for change in changes[1:]:
    synced.append(change >= threshold)
    excess = synced[-1] - (1 - lssr)
    debt = debt * (1 - (1 - lssr) / 10) + excess
    if abs(debt) > 3:
      count, debt = 0, 0.0
    threshold *= np.exp(max(0.03, 1 / (1 + count)) * excess)
    count += synced[-1]
  return synced


@pytest.mark.parametrize('phases', STREAMS)
def test_a_gain_falls_until_a_debt_grows(phases):
  """The first finite change is the first threshold."""
  measured = stream(STREAMS[phases])
  measured[0, 1] = np.inf  # Like the change of a first gradient.
  trigger = ss.budgeted(compared(), lssr=0.9)
  states = run(trigger, jnp.asarray(measured))
  expected = [True, *steered(measured[1:].max(axis=1).astype(float), 0.9)]
  assert [bool(state.sync[0]) for state in states] == expected


@pytest.mark.parametrize('workers', [4, 16, 64])
@pytest.mark.parametrize('sigma', [0.3, 1.5])
def test_the_largest_changes_synchronize(workers, sigma):
  changes = stream([1.0], sigma, workers)
  states = run(ss.budgeted(compared(), lssr=0.9), jnp.asarray(changes))
  synced = np.array([state.sync[0] for state in states])
  largest = changes.max(axis=1)
  decile = largest >= np.quantile(largest, 0.9)
  assert decile[synced].mean() > 0.75


def test_a_budget_of_few_synchronizations_begins_with_one():
  """A start far above a single measurement cost hundreds of local steps."""
  for first in 1e-6, 1.0, 1e6:
    changes = first * stream([1.0])[:200]
    states = run(ss.budgeted(compared(), lssr=0.99), jnp.asarray(changes))
    steps = np.flatnonzero([state.sync[0] for state in states])
    assert steps[0] == 0 and 1 <= sum(steps[1:] < 100) <= 4


def test_a_trigger_decides_by_the_steered_threshold():
  """Two triggers on one stream, each with its unit, both keep the budget."""
  for theta, variant in [(1e-6, 'naive'), (1e6, 'linear')]:
    trigger = ss.budgeted(ss.fda(theta, variant), lssr=0.8)

    def worker(noise, trigger=trigger):
      def step(carry, noise):
        w, state = carry
        _, state = trigger.update(noise, state, w)
        return (ss.synchronize(state.sync, w + noise), state), state.sync

      w = jnp.zeros(noise.shape[1])
      return jax.lax.scan(step, (w, trigger.init(w)), noise)[1]

    noise = np.random.default_rng(1).normal(size=(4, 400, 20))
    noise = jnp.asarray(noise, jnp.float32)
    sync = jax.jit(jax.vmap(worker, axis_name=ss.AXIS))(noise)
    assert 0.75 < 1 - np.asarray(sync)[0, 200:].mean() < 0.85


def traffic(step, sync):
  return Traffic(step, sync, bsp=1000.0)


@pytest.mark.parametrize('budget, rate', [(70.0, 0.1), (510.0, 1.0), (1e9, 1)])
def test_bytes_pay_for_votes_and_synchronizations(budget, rate):
  trigger = ss.budgeted(compared(), bytes_per_step=budget)
  measured = jnp.asarray(stream(STREAMS['one scale']))

  def worker(measured):
    def step(state, x):
      state = trigger.update(x, state, traffic=traffic(20.0, 490.0 / 0.98))[1]
      return state, state.sync

    return jax.lax.scan(step, trigger.init(measured[0]), measured)[1]

  sync = jax.vmap(worker, 1, axis_name=ss.AXIS)(measured)
  found = np.asarray(sync)[0].mean()
  assert abs(found - min(1, (budget - 20) / 500)) < 0.02
  assert abs(found - rate) < 0.04


def test_a_budget_that_the_votes_alone_exceed_is_refused():
  trigger = ss.any_of(ss.budgeted(ss.selsync(0.3), bytes_per_step=6.0))
  (budget,) = trigger.traits.budgets
  with pytest.raises(ValueError, match=r'above 6, .*\(votes\), got 6'):
    budget(traffic(6.0, 100.0))
  assert budget(traffic(5.0, 100.0)) == 0.01


def test_a_synchronization_that_another_trigger_caused_counts():
  trigger = ss.any_of(ss.budgeted(compared(), lssr=0.9), ss.every(20))
  states = run(trigger, jnp.asarray(stream(STREAMS['one scale'])))
  synced = np.array([state.sync[0] for state in states])
  # The bound takes half of the budget.
  assert abs(synced.mean() - 0.1) < 0.02
  assert 8 <= synced[-100:].sum() <= 12


def test_bytes_that_a_bound_spends_are_refused_once_they_are_known():
  trigger = ss.any_of(
    ss.budgeted(compared(), bytes_per_step=10.0), ss.max_interval(8)
  )
  (budget,) = trigger.traits.budgets
  assert budget(traffic(0.0, 50.0)) == 0.2
  with pytest.raises(ValueError, match='the budget is one in 10 steps'):
    budget(traffic(0.0, 100.0))


@pytest.mark.parametrize('share', [0.2, 0.8])
def test_a_links_share_pays_for_what_it_can_carry(share):
  trigger = ss.budgeted(compared(), link_share=share)
  measured = jnp.asarray(stream([1.0]))
  steps = {0.0: 100, 4.0: 500, 16.0: 600}  # Steps in flight, how long.
  travel = np.repeat(np.float32([*steps]), [*steps.values()])

  def worker(measured):
    def step(state, row):
      x, travel = row
      state = trigger.update(x, state._replace(travel=travel))[1]
      return state, state.sync

    rows = measured, jnp.asarray(travel)
    return jax.lax.scan(step, trigger.init(measured[0]), rows)[1]

  sync = jax.vmap(worker, 1, axis_name=ss.AXIS)(measured)[0]
  found = {each: np.asarray(sync)[travel == each] for each in steps}
  assert found[0.0].mean() > 0.9
  for each in 4.0, 16.0:
    assert abs(found[each][100:].mean() - share / each) < 0.03


def test_a_budget_of_bytes_must_know_what_an_average_sends():
  trigger = ss.budgeted(compared(), bytes_per_step=100.0)
  with pytest.raises(ValueError, match='does not know the bytes of an'):
    trigger.update(jnp.float32(1), trigger.init(None))
