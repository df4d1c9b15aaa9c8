"""Asynchronous DiLoCo against DiLoCo, and against its algorithm."""

import heapq

import jax
import numpy as np
import pytest

from selsync_jax.configs import hyperplane
from selsync_jax.training import start
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from tests.support import small

H, FACTORS = 3, (1.0, 1.7, 3.1, 0.6)
FIELDS = {'local_steps': H, 'rate': 0.7, 'momentum': 0.9}
TOTAL = small.WORKERS * small.STEPS


def add(*terms):
  """The sum of `(weight, tree)`."""
  weights, trees = zip(*terms, strict=True)
  return jax.tree.map(
    lambda *x: sum(w * y for w, y in zip(weights, x, strict=True)), *trees
  )


def assert_close(one, other):
  for x, y in zip(*map(jax.tree.leaves, (one, other)), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5)


def test_equal_workers_are_diloco():
  config = small.config()
  config.sync = hyperplane.get_config('diloco').sync
  config.sync.period = H
  setup = create_setup(check(config))
  state, step = start.fresh(setup), setup.train_step()
  for batch in setup.problem.data.batches(range(small.WORKERS), 0, small.STEPS):
    state, _ = step(state, batch)
  engine = small.train('async_diloco', fields=FIELDS)
  engine.advance(TOTAL)
  assert_close(engine.shared()['params'], state.params)


def delayed_nesterov(rounds, rate, momentum):
  """The server's parameters after so many rounds of unequal workers."""
  numerics = small.numerics(plain=True)
  initial = numerics.initial()
  common, buffer, delta = initial['params'], None, []
  steps = [0] * len(FACTORS)
  # When a round ends, whose it is, and the parameters that it began with.
  running = [(H * f, i, common) for i, f in enumerate(FACTORS)]
  heapq.heapify(running)
  for arrival in range(1, rounds + 1):
    time, i, begun = heapq.heappop(running)
    local = {**initial, 'params': begun}
    for _ in range(H):
      (gradient,) = numerics.gradients([(local, i, steps[i])])
      local = numerics.update(local, gradient['grads'], numerics.rate(0))
      steps[i] += 1
    push = add((1.0, begun), (-1.0, local['params']))
    delta.append(push)
    common = add((1.0, common), (-rate / len(FACTORS), push))
    if arrival % len(FACTORS) == 0:
      mean = add(*((1 / len(FACTORS), each) for each in delta))
      buffer = add((momentum, buffer), (1.0, mean)) if buffer else mean
      common = add((1.0, common), (-rate * momentum, buffer))
      delta = []
    heapq.heappush(running, (time + H * FACTORS[i], i, common))
  return common


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_unequal_workers_move_the_server_as_published(momentum):
  fields = FIELDS | {'momentum': momentum}
  unequal = {'compute': 'factors', 'factors': FACTORS}
  engine = small.train('async_diloco', plain=True, fields=fields, **unequal)
  while engine._models()[0].version < 11:
    uses = engine.advance(engine.uses + 1)
  expected = delayed_nesterov(11, 0.7, momentum)
  found = engine.shared()['params']
  assert_close(jax.tree.map(lambda x: x[0], found), expected)
  assert uses[-1].staleness > 0


def test_slow_workers_take_fewer_local_steps_if_these_are_dynamic():
  unequal = {'compute': 'factors', 'factors': (1.0, 1.0, 2.0, 4.0)}
  fields = {'local_steps': 8, 'dynamic': True}
  engine = small.clock('async_diloco', fields=fields, **unequal)
  engine.advance(400)
  last = engine.advance(400 + 8 + 8 + 4 + 2)
  counts = [sum(use.worker == i for use in last) for i in range(4)]
  assert counts == [8, 8, 4, 2]
