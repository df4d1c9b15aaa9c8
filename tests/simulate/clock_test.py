"""Times known from arithmetic, or from a paper."""

import gc
import importlib
import math
import tracemalloc

import pytest

from selsync_jax.config import RunError
from selsync_jax.simulate.asynchronous import ASYNCHRONOUS
from selsync_jax.simulate.asynchronous.server import controller
from selsync_jax.simulate.asynchronous.wagma import butterfly
from selsync_jax.simulate.engine import Engine
from selsync_jax.simulate.simulation import Simulation
from tests.support import small

ALL = [
  *((name, {}) for name in ASYNCHRONOUS),
  ('ssp', {'staleness': 0}),
  ('dssp', {'strict': False}),
  ('eager', {'mode': 'majority'}),
  ('ad_psgd', {'topology': 'complete'}),
  ('prague', {'slowdown': math.inf}),
]
PAIR = {'workers': 2, 'compute': 'factors', 'factors': (1.0, 3.1)}


def seconds(method, steps, workers=8, **where):
  """Virtual seconds of a run of `steps * workers` gradients."""
  fields = where.pop('fields', {})
  engine = small.clock(method, fields=fields, workers=workers, **where)
  engine.advance(steps * workers)
  return engine.sim.env.now


@pytest.mark.parametrize('method, fields', ALL)
def test_equal_workers_without_latency_lose_no_time(method, fields):
  """K steps of T seconds take K T: no worker ever waits."""
  engine = small.clock(method, fields=fields, workers=8)
  engine.advance(8 * 50)
  assert engine.sim.env.now == pytest.approx(50 * 0.1)
  assert {span.kind for span in engine.spans()} == {'compute'}


def test_a_step_waits_for_the_examples_that_others_send():
  """A million bits take 0.1 seconds, as long as a step computes."""
  engine = small.clock('asp', injected=125_000, bandwidth='10Mbit')
  alone = small.clock('asp', bandwidth='10Mbit')
  ends = [each.advance(4)[0].seconds for each in (engine, alone)]
  assert ends[0] == pytest.approx(ends[1] + 0.1)


# One of eight workers needs two seconds for a step, the others one second. If
# no worker waits, there are 15 gradients in 2 seconds. If all wait for the
# slowest worker, there are 8 gradients in 2 seconds.
@pytest.mark.parametrize(
  'method, fields, gradients',
  [
    ('asp', {}, 15),
    ('dssp', {'strict': False}, 15),
    ('ad_psgd', {}, 15),
    ('ssp', {}, 8),
    ('dssp', {}, 8),
    ('eager', {'mode': 'majority'}, 8),
    ('wagma', {}, 8),
  ],
)
def test_a_slow_worker_costs_what_the_method_says(method, fields, gradients):
  slow = {'compute': 'factors', 'factors': (2.0,) + 7 * (1.0,)}
  took = seconds(method, 300, fields=fields, step_seconds=1.0, **slow)
  assert took == pytest.approx(300 * 8 * 2 / gradients, rel=0.03)


def test_a_servers_link_is_shared_by_its_clients():
  """8 workers, 10 ms per message: 80 ms for a round, then the workers' step.

  With a step of 20 ms the link is always busy: a gradient every 10 ms. With a
  step of 200 ms it is not: a worker's step takes 200 + 10 + 10 ms.
  """
  link = {'bandwidth': '1Mbit', 'workers': 8}  # 1,250 bytes take 10 ms.
  busy = seconds('asp', 100, step_seconds=0.02, **link)
  assert busy == pytest.approx(100 * 8 * 0.01, rel=0.03)
  idle = seconds('asp', 100, step_seconds=0.2, **link)
  assert idle == pytest.approx(100 * 0.22, rel=0.03)


def test_bytes_sent_add_up_over_the_messages():
  per_gradient = {'asp': 2, 'ad_psgd': 1}  # Push and pull; half of them ask.
  for method, messages in per_gradient.items():
    engine = small.clock(method, workers=4)
    uses = engine.advance(400)
    expected = messages * 400 * small.NBYTES
    assert uses[-1].sent == pytest.approx(expected, rel=0.05)


def lead_at_begin(uses):
  """By gradient, its worker's lead over the slowest worker at its start."""
  applied = sorted((use.seconds, use.worker) for use in uses)
  clocks = dict.fromkeys({worker for _, worker in applied}, 0)
  for use in sorted(uses, key=lambda use: use.began):
    while applied and applied[0][0] <= use.began:
      clocks[applied.pop(0)[1]] += 1
    assert clocks[use.worker] == use.step
    yield use.step - min(clocks.values())


@pytest.mark.parametrize(
  'method, fields, bound',
  [
    ('ssp', {'staleness': 0}, 0),
    ('ssp', {'staleness': 3}, 3),
    ('dssp', {'s_low': 2, 'r_max': 5}, 7),
  ],
)
def test_no_worker_starts_a_step_too_far_ahead(method, fields, bound):
  engine = small.clock(
    method, fields=fields, compute='lognormal', sigma=1.0, **small.NETWORK
  )
  leads = list(lead_at_begin(engine.advance(600)))
  assert max(leads) == bound


def test_dssp_as_printed_passes_the_bound_that_its_text_promises():
  fields = {'s_low': 3, 'r_max': 12, 'strict': False}
  leads = lead_at_begin(small.clock('dssp', fields=fields, **PAIR).advance(600))
  assert max(leads) > 15


# Worked by hand. The fast worker's last push is at 10 and its interval is 1, so
# its next pushes are at 10, 11, 12, ... The slow worker's interval is 4.
@pytest.mark.parametrize(
  'slowest, r_max, steps',
  [
    ((8.0, 4.0), 12, 2),  # It pushes at 12, 16, ...: two more steps meet it.
    ((9.0, 5.0), 12, 3),  # At 13.
    ((9.0, 5.0), 2, 2),  # At 13, and only two are allowed.
    ((6.0, 2.0), 12, 0),  # At 10: the push is about to come.
    ((9.6, 5.6), 5, 4),  # At 13.6: 14 is closer than 13.
    ((9.3, 5.2), 8, 3),  # At 13.4 and 17.5: 13 is the closest.
    ((0.0, 0.0), 12, 0),  # It has not pushed yet.
  ],
)
def test_dssps_controller_lets_both_push_at_the_same_time(
  slowest, r_max, steps
):
  assert controller((10.0, 9.0), slowest, r_max) == steps


def test_the_hyperplane_table_of_eager_sgd():
  """8 processes, 325 ms a step, a random one late: speed-up over synchronous.

  Published 1.50, 1.75, 2.01 at 200, 300, 400 ms; T + d against T + d / 8.
  """
  for late, published in ((0.2, 1.50), (0.3, 1.75), (0.4, 2.01)):
    where = {'compute': 'delays', 'delay': late, 'step_seconds': 0.325}
    # 20 epochs of 16 steps, with a synchronization every 10 epochs.
    took = seconds('eager', 320, fields={'sync_every': 160}, **where)
    speedup = 320 * (0.325 + late) / took
    assert speedup == pytest.approx(published, rel=0.1)
    assert speedup <= (0.325 + late) / (0.325 + late / 8) + 0.02


def test_the_heterogeneous_pair_of_dssp():
  """Time of SSP(3) over DSSP: published 1.88, which only DSSP as printed has.

  A worker 3.1 times as fast cannot both be waited for and bounded: strict is 1.
  """
  ssp = seconds('ssp', 500, **PAIR)
  printed = seconds('dssp', 500, fields={'strict': False}, **PAIR)
  strict = seconds('dssp', 500, **PAIR)
  assert ssp / printed == pytest.approx(1.88, rel=0.2)
  assert ssp / strict == pytest.approx(1, rel=0.02)


def contributors(mode, rounds, workers=4):
  """By round, the number of workers whose gradient of this round counts."""
  engine = small.clock(
    'eager',
    fields={'mode': mode, 'sync_every': 10**6},
    workers=workers,
    compute='lognormal',
    sigma=0.1,
  )
  by_round = {}
  while len(by_round) <= rounds:
    for use in engine.advance(engine.uses + 64):
      workers = by_round.setdefault(use.seconds, set())
      if not use.staleness:
        workers.add(use.worker)
  return [len(by_round[when]) for when in sorted(by_round)[:rounds]]


def test_solo_has_a_contributor_and_majority_half_of_the_workers():
  """The drawn worker's rank is uniform: (N + 1) / 2 workers have arrived."""
  assert min(contributors('solo', 500)) >= 1
  majority = contributors('majority', 2000)
  assert sum(majority) / 2000 == pytest.approx(2.5, rel=0.03)


def spied(monkeypatch, method, limit, **where):
  """`(ended, members)` of every average, until there are `limit` of them."""
  module = importlib.import_module(
    f'selsync_jax.simulate.asynchronous.{method}'
  )
  average, averages = module.average, []

  def recording(sim, models, members):
    averages.append((sim.env.now, tuple(members)))
    average(sim, models, members)

  monkeypatch.setattr(module, 'average', recording)
  engine = small.clock(method, **where)
  while len(averages) < limit:
    engine.advance(engine.uses + 500)
  return averages, engine


@pytest.mark.parametrize(
  'topology, exchanges',
  [
    ('complete', 1_000),
    ('ring', 1_000),
    pytest.param('ring', 10_000, marks=pytest.mark.slow),
  ],
)
def test_exchanges_have_no_deadlock(monkeypatch, topology, exchanges):
  made, _ = spied(
    monkeypatch,
    'ad_psgd',
    exchanges,
    fields={'topology': topology},
    workers=8,
    compute='lognormal',
    sigma=1.0,
    step_seconds=0.01,
    **small.NETWORK,
  )
  assert {(a % 2, b % 2) for _, (a, b) in made} == {(0, 1)}
  assert_disjoint(made, lambda members: 0.011)


def assert_disjoint(averages, duration):
  """No two averages that overlap in time have a common member."""
  free = {}  # By worker, the time of its last average.
  for ended, members in averages:
    for i in members:
      assert free.get(i, 0) <= ended - duration(members) + 1e-9
      free[i] = ended


@pytest.mark.parametrize('slowdown', [math.inf, 4])
def test_groups_of_prague_are_disjoint(monkeypatch, slowdown):
  groups, engine = spied(
    monkeypatch,
    'prague',
    300,
    fields={'slowdown': slowdown},
    workers=8,
    compute='lognormal',
    sigma=1.0,
    **small.NETWORK,
  )

  def duration(members):
    others = len(members) - 1
    return 2 * others * (0.01 / len(members) + 0.001) if others else 0

  assert_disjoint(groups, duration)
  assert {len(members) for _, members in groups} >= {2, 3}
  assert engine.sim.steps  # All of them take steps.


def test_the_slowdown_filter_spares_the_fast():
  slow = {'compute': 'factors', 'factors': (4.0,) + 7 * (1.0,)}
  with_filter = seconds('prague', 200, **slow)
  without = seconds('prague', 200, fields={'slowdown': math.inf}, **slow)
  nobody_waits = 200 * 8 * 0.1 / 7.25
  assert with_filter == pytest.approx(nobody_waits, rel=0.15)
  assert without > 1.2 * with_filter


def test_a_butterfly_brings_all_workers_together():
  """After log2(P) / log2(S) steps, all share everything; groups partition."""
  for workers, size in ((8, 2), (16, 4), (64, 8)):
    known = {i: {i} for i in range(workers)}
    for step in range(workers.bit_length() // (size.bit_length() - 1)):
      groups = {i: butterfly(i, step, workers, size) for i in known}
      assert all(groups[j] == groups[i] for i in groups for j in groups[i])
      assert {len(group) for group in groups.values()} == {size}
      known = {i: set().union(*(known[j] for j in groups[i])) for i in known}
    assert all(who == set(range(workers)) for who in known.values())


@pytest.mark.parametrize(
  'method, fields',
  [
    ('eager', {'sync_every': 1}),
    *(
      pytest.param(method, fields, marks=pytest.mark.slow)
      for method, fields in [
        *((method, {}) for method in ('dssp', 'rna', 'ad_psgd', 'prague')),
        ('wagma', {'tau': 2}),
      ]
    ),
  ],
)
def test_memory_does_not_grow_with_the_steps(method, fields):
  engine, sizes = small.clock(method, workers=4, fields=fields), []
  only = tracemalloc.Filter(True, '*/simulate/*')
  cached = tracemalloc.Filter(False, '*/cluster.py')  # The cache has a limit.
  gc.freeze()  # Skips earlier objects.
  tracemalloc.start()
  try:
    for steps in (200, 400):
      engine.advance(4 * steps)
      engine.spans()
      gc.collect()
      snapshot = tracemalloc.take_snapshot().filter_traces((only, cached))
      sizes.append(sum(line.size for line in snapshot.statistics('filename')))
  finally:
    tracemalloc.stop()
    gc.unfreeze()
  before, after = sizes
  assert after - before < 50 * 200  # Bytes; an entry a step has over 100.


def test_a_deadlock_is_one_line():
  def method(sim):
    def worker():
      yield sim.env.event()

    sim.env.process(worker())
    return list

  engine = Engine(method, Simulation(small.cluster(), small.NBYTES))
  with pytest.raises(RunError, match='all workers wait for each other'):
    engine.advance(1)
