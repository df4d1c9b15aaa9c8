"""Lockstep methods on the virtual clock, by hand and against training."""

import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.methods import METHODS
from selsync_jax.runs.ledger import Totals
from selsync_jax.simulate.cluster import VirtualCluster
from selsync_jax.simulate.lockstep import LockstepLedger
from selsync_jax.simulate.run import simulate
from selsync_jax.sync.network import Network
from selsync_jax.sync.traffic import Collective, Traffic
from selsync_jax.training import step_cost
from tests.support import live_runs, short_runs
from tests.support.marks import slow_but

SECONDS = [[1.0, 5.0], [4.0, 2.0], [2.0, 3.0], [1.0, 1.0]]  # [step, worker].
# Two workers send half of a message in each of a ring's two rounds: 1 byte/s.
NETWORK = Network(2, bandwidth=8.0, latency=0.25)
CLUSTER = VirtualCluster(
  lambda worker, step: SECONDS[step][worker], NETWORK, {}
)


def create(collectives, totals=None, cluster=CLUSTER, votes=()):
  return LockstepLedger(
    totals or Totals(),
    Traffic(0.0, 0.0, 0.0),
    1,
    np.zeros(1000),
    False,
    cluster=cluster,
    collectives=collectives,
    votes=votes,
  )


def count(ledger, synced, **more):
  metrics = {'relative_change': np.zeros(2), 'synced': np.array([synced] * 2)}
  return ledger.count(metrics | more)


def test_a_message_that_is_not_sent_takes_no_time_and_is_no_barrier():
  ledger = create([Collective('all_reduce', 1.0, 'step', scale='renewed')])
  quiet, sent = (
    count(ledger, False, renewed=np.full(2, renewed)) for renewed in (0.0, 1.0)
  )
  assert quiet['virtual_seconds'] == 5 and quiet['waited'] == [0, 0]
  assert sent['virtual_seconds'] == 7 + 1.0 + 2 * 0.25


def test_a_step_takes_the_slowest_worker_and_its_collectives():
  ledger = create([Collective('all_reduce', nbytes=1.0, at='step')])
  rows = [count(ledger, True) for _ in SECONDS]
  seconds = 1.0 + 2 * 0.25
  ends = [5 + seconds, 9 + 2 * seconds, 12 + 3 * seconds, 13 + 4 * seconds]
  assert [row['virtual_seconds'] for row in rows] == ends
  assert [row['waited'] for row in rows] == [[4, 0], [0, 2], [1, 0], [0, 0]]
  assert [row['version'] for row in rows] == [[v, v] for v in range(4)]
  assert rows[0]['spans'] == [
    (0, 'compute', 0.0, 1.0, 0),
    (0, 'wait', 1.0, 5.0, 0),
    (0, 'communicate', 5.0, 6.5, 0),
    (1, 'compute', 0.0, 5.0, 0),
    (1, 'communicate', 5.0, 6.5, 0),
  ]
  summary = ledger.summary()
  assert summary['virtual_seconds'] == ends[-1]
  assert summary['waited'] == (4 + 2 + 1) / 2
  assert summary['staleness'] == 0


def test_a_message_travels_as_long_as_its_length_of_the_step():
  long = Collective('all_reduce', nbytes=1.0, at='step', scale='selection')
  ledger = create([long])
  ends = [
    count(ledger, True, selection=np.full(2, times))['virtual_seconds']
    for times in (1.0, 3.0)
  ]
  assert ends == [5 + 1.0 + 2 * 0.25, 6.5 + 4 + 3.0 + 2 * 0.25]


def test_a_message_of_every_third_average_takes_its_whole_time_there():
  ledger = create([Collective('all_reduce', 1.0, rate=1 / 3, scale='third')])
  rows = [
    count(ledger, True, third=np.full(2, times)) for times in (0.0, 0.0, 3.0)
  ]
  ends = [row['virtual_seconds'] for row in rows]
  assert ends == [5, 9, pytest.approx(12 + 1.0 + 2 * 0.25)]


def test_a_late_collective_travels_while_the_next_step_computes():
  ledger = create([Collective('all_reduce', 1.0, 'step', late=1)])
  rows = [count(ledger, False) for _ in SECONDS]
  # The votes of steps 0 to 2 arrive after 6.5, 8.5 and 11.5 seconds: the first
  # worker waits for each of them, the second for none but the third.
  ready = [(1, 5), (6.5, 7), (8.5, 10), (11.5, 11.5)]
  assert [row['virtual_seconds'] for row in rows] == [max(r) for r in ready]
  assert [row['waited'] for row in rows] == [[0, 0], [1.5, 0], [0, 0], [2, 0.5]]


SHARED = {'params': {'w': np.zeros(1, np.float32)}, 'model_state': {}}


def planned(trigger, averager, network=NETWORK):
  """A plan's seconds for steps of one second, and the ledger of such steps."""
  strategy = ss.Strategy(trigger, averager)
  cluster = VirtualCluster(lambda worker, step: 1.0, network, {})
  sends = strategy.sends(SHARED, network.workers)
  plan = step_cost.cost(strategy, SHARED, network, 0.0, compute=1.0)
  return plan, create(sends, cluster=cluster)


@pytest.mark.parametrize('k', [1, 2, 3, 4])
def test_a_delayed_average_hides_as_much_as_the_plan_says(k):
  """Steps of 1 s, and an average of 2.5 s after every fourth."""
  network = NETWORK._replace(bandwidth=16.0)
  plan, ledger = planned(ss.every(4), ss.delayed(ss.mean(), k), network)
  assert plan.average + plan.hidden == pytest.approx(2.5 / 4)
  assert plan.delay == 3
  rows = [count(ledger, step % 4 == 3) for step in range(24)]
  # The last average is still in flight.
  seconds = rows[-1]['virtual_seconds'] - 24
  assert seconds == pytest.approx(20 * plan.average)


def test_exchanges_in_turn_travel_as_long_as_others_compute():
  """Each of three rounds takes one second, like a step of eight workers."""
  network = Network(8, bandwidth=32.0, latency=0.0)
  plan, ledger = planned(ss.every(1), ss.delayed(ss.gossip(), 1), network)
  assert (plan.average, plan.hidden) == pytest.approx((0, 1))
  rows = [count(ledger, True) for _ in range(24)]
  assert rows[-1]['virtual_seconds'] == pytest.approx(24)


def test_votes_during_a_delay_start_at_most_one_average():
  plan, _ = planned(ss.every(2), ss.delayed(ss.mean(), 5))
  assert plan.lssr == pytest.approx(4 / 5)


def test_a_step_without_a_collective_waits_for_no_worker():
  ledger = create([Collective('all_reduce', nbytes=1.0)])
  rows = [count(ledger, synced) for synced in (False, True, False, True)]
  assert [row['waited'] for row in rows] == [[0, 0], [2, 0], [0, 0], [1, 0]]
  assert [row['virtual_seconds'] for row in rows] == [5, 8.5, 11.5, 14.0]
  assert [row['version'][0] for row in rows] == [0, 0, 1, 1]


def test_a_collective_is_issued_at_its_rate():
  """Also if n times 1 / n is less than 1, for example with n = 49."""
  for period in (1, 3, 8, 49):
    vote = Collective('all_reduce', 1.0, 'step', 1 / period)
    cluster = VirtualCluster(lambda worker, step: float(worker), NETWORK, {})
    ledger = create([vote], cluster=cluster)
    waits = [count(ledger, False)['waited'][0] for _ in range(3 * period)]
    assert np.flatnonzero(waits).tolist() == [
      period - 1,
      2 * period - 1,
      3 * period - 1,
    ]


def test_a_synchronization_is_a_barrier_in_every_exchange():
  """Rounds that take turns send little, but all workers enter each round."""
  pairs = [Collective('exchange', 1.0, rate=1 / 3)] * 3
  ledger = create(pairs)
  rows = [count(ledger, synced) for synced in (True, True, False, True)]
  assert [row['waited'] for row in rows] == [[4, 0], [0, 2], [0, 0], [1, 0]]


def test_workers_that_join_start_when_the_others_are_ready():
  clock = {'ready': [7.0, 9.0, 8.0], 'waited': 1.0, 'late': [[1, 50.0]]}
  ledger = create([], Totals(clock=clock))
  assert count(ledger, False)['virtual_seconds'] == 9 + 5


@pytest.mark.parametrize('method', slow_but(['selsync'], METHODS))
def test_every_preset_trains_on_the_clock_as_it_does_under_vmap(
  method, tmp_path
):
  short = {'steps': 8, 'checkpoint__every': 8, 'eval__every_epochs': 9.9}
  short_runs.run(tmp_path / 'real', method, **short)
  config = short_runs.config(method, **short, virtual_cluster__compute='delays')
  summary = simulate(config, tmp_path / 'virtual')
  assert summary['virtual_seconds'] >= 8 * 0.1
  states = [
    live_runs.arrays(tmp_path / name, 8) for name in ('real', 'virtual')
  ]
  for (name, real), (_, virtual) in zip(*states, strict=True):
    assert real.tobytes() == virtual.tobytes(), name


def test_workers_that_look_ahead_wait_for_no_vote_but_repeat_a_step():
  """By hand: steps of 1 and 2 s, and votes of 1.5 s; the last one asks."""
  took = 1.0, 2.0
  vote = Collective('all_reduce', 1.0, 'step')
  average = Collective('all_reduce', 2.0)

  def ends(looks_ahead):
    cluster = VirtualCluster(
      lambda worker, step: took[worker], NETWORK, {}, looks_ahead
    )
    ledger = create([average], cluster=cluster, votes=[vote])
    rows = [count(ledger, synced) for synced in (False, False, False, True)]
    return [row['virtual_seconds'] for row in rows]

  assert ends(False) == [3.5, 7, 10.5, 14 + 2.5]
  # The fourth vote is answered at 9.5; the step after it ends at 10.
  assert ends(True) == [2, 4, 6, 10 + 2.5]


@pytest.mark.parametrize('period, limit', [(10, 1.15), (50, 1.05)])
def test_votes_of_a_step_cost_hardly_more_than_the_steps_they_repeat(
  period, limit
):
  """Steps and round trips of 1 s, and an average every `period` steps."""
  steps, average = 10 * period, Collective('all_reduce', 0.001)
  network = Network(2, bandwidth=8.0, latency=0.5)

  def seconds(looks_ahead, votes):
    cluster = VirtualCluster(lambda *_: 1.0, network, {}, looks_ahead)
    ledger = create([average], cluster=cluster, votes=votes)
    rows = [count(ledger, t % period == 0) for t in range(1, steps + 1)]
    return rows[-1]['virtual_seconds']

  vote = Collective('all_reduce', 1e-9, 'step')
  without = seconds(False, [])
  assert seconds(False, [vote]) > 1.7 * without
  assert seconds(True, [vote]) < limit * without
