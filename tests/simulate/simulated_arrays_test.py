"""A simulation computes exactly the results of training, in any batch."""

import json

import jax
import numpy as np
import pytest

from selsync_jax.simulate import asynchronous
from selsync_jax.simulate.asynchronous import ASYNCHRONOUS
from selsync_jax.simulate.asynchronous.partial import (
  PartialAllReduce,
  train_with,
)
from selsync_jax.simulate.engine import Engine
from selsync_jax.simulate.simulation import Simulation
from selsync_jax.sync.traffic import nbytes
from selsync_jax.training import start
from tests.support import small
from tests.support.marks import slow_but

TOTAL = small.WORKERS * small.STEPS
QUICK = ('asp', 'eager', 'prague')  # A server, rounds, groups.
UNEQUAL = {'compute': 'lognormal', 'sigma': 0.5, **small.NETWORK}


def leaves(tree):
  return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same_bits(one, other):
  for x, y in zip(leaves(one), leaves(other), strict=True):
    np.testing.assert_array_equal(x, y)


def assert_close(one, other):
  for x, y in zip(leaves(one), leaves(other), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-6)


def trained_by_bsp(plain=False):
  """The parameters that `train.py` reaches with BSP."""
  setup = small.setup(plain)
  state = start.init(setup)
  step = setup.train_step()
  for batch in setup.problem.data.batches(range(small.WORKERS), 0, small.STEPS):
    state, _ = step(state, batch)
  return state.params


@pytest.fixture(scope='module')
def bsp():
  return trained_by_bsp()


@pytest.mark.parametrize(
  'method, fields',
  [
    ('ssp', {'staleness': 0}),
    ('asp', {}),
    ('dssp', {}),
    ('eager', {}),
    ('eager', {'mode': 'majority'}),
    ('rna', {}),
  ],
)
def test_equal_workers_that_average_gradients_are_bsp(method, fields, bsp):
  engine = small.train(method, fields=fields)
  engine.advance(TOTAL)
  assert_close(engine.shared()['params'], bsp)


def test_a_bound_of_no_steps_is_bsp_on_unequal_workers_too():
  """Gradients arrive one by one; N plain steps of 1/N add up to one."""
  engine = small.train('ssp', fields={'staleness': 0}, plain=True, **UNEQUAL)
  uses = engine.advance(TOTAL)
  assert [use.step for use in uses] == sorted(
    list(range(small.STEPS)) * small.WORKERS
  )
  assert_close(engine.shared()['params'], trained_by_bsp(plain=True))


@pytest.mark.parametrize('width', [1, 4, 8])
def test_no_result_depends_on_computations_beside_it(width):
  numerics = small.numerics(width)
  model = numerics.initial()
  rows = [(model, worker, 3) for worker in range(small.WORKERS)]
  together = numerics.gradients(rows)
  for row, gradient in zip(rows, together, strict=True):
    assert_same_bits(numerics.gradients([row])[0], gradient)
  again = numerics.gradients(rows[::-1])
  assert_same_bits(together[::-1], again)


@pytest.mark.parametrize('width', [1, 4])
def test_no_result_depends_on_how_often_one_looks(width):
  often, seldom = (small.train('asp', width=width, **UNEQUAL) for _ in 'ab')
  for uses in range(1, TOTAL + 1):
    often.advance(uses)
  seldom.advance(TOTAL)
  assert_same_bits(often.shared(), seldom.shared())


@pytest.mark.parametrize('method', slow_but(QUICK, ASYNCHRONOUS))
def test_a_killed_run_resumes_to_the_same_bits(method):
  """24 kills over all methods, at random moments."""
  alone = small.train(method, **UNEQUAL)
  losses = [float(u.metrics.tree['loss']) for u in alone.advance(TOTAL)]
  assert np.mean(losses[-8:]) < 0.8 * np.mean(losses[:8])
  kills = np.random.default_rng(sorted(ASYNCHRONOUS).index(method))
  for uses in kills.integers(1, TOTAL, size=3):
    killed = small.train(method, **UNEQUAL)
    killed.advance(int(uses))
    arrays, record = killed.save()
    del killed
    resumed = small.train(method, **UNEQUAL)
    record = json.loads(json.dumps(record))
    jax.tree.map(
      lambda saved, like: np.testing.assert_equal(
        (saved.shape, saved.dtype), (like.shape, like.dtype)
      ),
      arrays,
      resumed.like(record),
    )
    resumed.resume(arrays, record)
    resumed.advance(TOTAL)
    assert_same_bits(resumed.shared(), alone.shared())
    assert (resumed.sim.env.now, resumed.sim.sent) == (
      alone.sim.env.now,
      alone.sim.sent,
    )


def test_no_use_keeps_the_arrays_of_its_gradient():
  engine = small.train('asp')
  uses = engine.advance(2 * small.WORKERS)
  saved = [len(engine.save()[1]['indices']['gradient'])]
  uses.clear()
  saved.append(len(engine.save()[1]['indices']['gradient']))
  assert saved[0] == saved[1]


def test_no_gradient_is_lost_in_a_partial_all_reduce():
  totals, computed, reductions = {}, {}, []

  def method(sim):
    reduction = PartialAllReduce(
      sim, lambda number, worker: True, lambda givers: 1
    )
    reductions.append(reduction)

    def apply(model, results):
      totals.update({result.round: result.mean for result in results})
      return model

    def call(gradient):
      computed[gradient.worker, gradient.step] = gradient.value
      return gradient.step

    return train_with(sim, reduction, apply, call)

  # A round takes longer than a step, so some gradients arrive during it.
  where = small.cluster(compute='lognormal', sigma=0.5, latency='30ms')
  size = nbytes(small.setup().problem.shapes)
  engine = Engine(method, Simulation(where, size, small.numerics()))
  uses = engine.advance(100)
  held = [g for gradients in reductions[0].held for g in gradients]
  queued = engine.sim.uses  # Used in the same round, not yet returned.
  ended = [span for span in engine.spans() if span.kind == 'compute']
  assert len(uses) + len(queued) + len(held) == len(ended)
  assert held and max(use.staleness for use in uses) > 0

  def added(values):
    return leaves(jax.tree.map(lambda *x: np.sum(x, axis=0), *values))

  used = [
    computed[use.worker, use.step].tree['grads'] for use in [*uses, *queued]
  ]
  sent = [total.tree for total in totals.values()]
  for x, y in zip(added(sent), added(used), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-5)


def test_a_clock_alone_has_the_times_and_no_arrays():
  uses = small.train('asp', **UNEQUAL).advance(TOTAL)
  make = asynchronous.create_method('asp')
  size = nbytes(small.setup().problem.shapes)
  alone = Engine(make, Simulation(small.cluster(**UNEQUAL), size))
  timed = alone.advance(TOTAL)
  assert [use.seconds for use in timed] == [use.seconds for use in uses]
  assert all(use.metrics.tree is None for use in timed)
