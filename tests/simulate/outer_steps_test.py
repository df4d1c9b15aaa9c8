"""Outer steps on the virtual clock: by a server, by time, or by a quorum."""

import heapq

import jax
import numpy as np
import pytest

from selsync_jax.configs import hyperplane
from selsync_jax.training import start
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from tests.support import small

H, LONG, N = 3, 5, small.WORKERS  # Local steps of a round, and workers.
FACTORS = (1.0, 1.73, 3.13, 0.617)
OUTER = {'rate': 0.7, 'momentum': 0.9}


def add(*terms):
  """The sum of `(weight, tree)`."""
  weights, trees = zip(*terms, strict=True)
  return jax.tree.map(
    lambda *x: sum(w * y for w, y in zip(weights, x, strict=True)), *trees
  )


def assert_close(one, other):
  for x, y in zip(*map(jax.tree.leaves, (one, other)), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize(
  'method, fields',
  [
    ('async_diloco', {'local_steps': H}),
    ('a_edit', {'seconds': 0.1 * (H - 0.5)}),  # It finishes its step.
  ],
)
def test_equal_workers_are_diloco(method, fields):
  config = small.config()
  config.sync = hyperplane.get_config('diloco').sync
  config.sync.period = H
  setup = create_setup(check(config))
  state, step = start.init(setup), setup.train_step()
  for batch in setup.problem.data.batches(range(N), 0, small.STEPS):
    state, _ = step(state, batch)
  engine = small.train(method, fields=OUTER | fields)
  engine.advance(N * small.STEPS)
  assert_close(engine.shared()['params'], state.params)


def round_from(numerics, i, step, common, count):
  """The parameters after `count` local steps of a worker, from its `step`."""
  local = {**numerics.initial(), 'params': common}
  for k in range(count):
    (gradient,) = numerics.gradients([(local, i, step + k)])
    local = numerics.update(local, gradient['grads'], numerics.rate(0))
  return local['params']


def delayed_nesterov(rounds, rate, momentum, dynamic):
  """The server's parameters after some rounds of unequal workers."""
  numerics = small.numerics(plain=True)
  common, buffer, delta = numerics.initial()['params'], None, []
  steps, running = [0] * len(FACTORS), []

  def begin(time, i):
    count = LONG
    if dynamic and time >= max(FACTORS):  # All have finished a step.
      count = max(1, int(LONG * min(FACTORS) / FACTORS[i]))
    heapq.heappush(running, (time + count * FACTORS[i], i, common, count))

  for i in range(len(FACTORS)):
    begin(0, i)
  for arrival in range(1, rounds + 1):
    time, i, begun, count = heapq.heappop(running)
    local = round_from(numerics, i, steps[i], begun, count)
    steps[i] += count
    delta.append(add((1.0, begun), (-1.0, local)))
    common = add((1.0, common), (-rate / len(FACTORS), delta[-1]))
    if arrival % len(FACTORS) == 0:
      mean = add(*((1 / len(FACTORS), each) for each in delta))
      buffer = add((momentum, buffer), (1.0, mean)) if buffer else mean
      common = add((1.0, common), (-rate * momentum, buffer))
      delta = []
    begin(time, i)
  return common


@pytest.mark.parametrize(
  'momentum, dynamic', [(0.0, False), (0.9, False), (0.9, True)]
)
def test_unequal_workers_move_the_server_as_published(momentum, dynamic):
  fields = {'local_steps': LONG, 'momentum': momentum, 'dynamic': dynamic}
  unequal = {'compute': 'factors', 'factors': FACTORS}
  engine = small.train('async_diloco', plain=True, fields=fields, **unequal)
  while engine._models()[0].version < 11:
    uses = engine.advance(engine.uses + 1)
  expected = delayed_nesterov(11, 0.7, momentum, dynamic)
  found = engine.shared()['params']
  assert_close(jax.tree.map(lambda x: x[0], found), expected)
  assert uses[-1].staleness > 0


def test_rounds_of_equal_time_end_in_an_outer_step():
  """A worker finishes the step in which the round's time is over."""
  numerics, seconds, rounds = small.numerics(plain=True), 0.5, 4
  counts = [int(np.ceil(seconds / (0.1 * f))) for f in FACTORS]
  common, buffer, steps = numerics.initial()['params'], None, [0] * N
  for _ in range(rounds):
    ends = []
    for i, count in enumerate(counts):
      ends.append(round_from(numerics, i, steps[i], common, count))
      steps[i] += count
    delta = add((1.0, common), *((-1 / N, end) for end in ends))
    buffer = add((0.9, buffer), (1.0, delta)) if buffer else delta
    common = add((1.0, common), (-0.7, delta), (-0.63, buffer))
  unequal = {'compute': 'factors', 'factors': FACTORS}
  engine = small.train(
    'a_edit', plain=True, fields={'seconds': seconds}, **unequal
  )
  engine.advance(rounds * sum(counts))
  assert len(set(counts)) > 2
  found = engine.shared()['params']
  for i in range(N):
    assert_close(jax.tree.map(lambda x, i=i: x[i], found), common)


def test_slow_workers_take_fewer_local_steps_if_these_are_dynamic():
  unequal = {'compute': 'factors', 'factors': (1.0, 1.0, 2.0, 4.0)}
  fields = {'local_steps': 8, 'dynamic': True}
  engine = small.clock('async_diloco', fields=fields, **unequal)
  engine.advance(400)
  last = engine.advance(400 + 8 + 8 + 4 + 2)
  counts = [sum(use.worker == i for use in last) for i in range(4)]
  assert counts == [8, 8, 4, 2]


def test_in_rounds_of_equal_time_a_slow_worker_takes_fewer_steps():
  unequal = {'compute': 'factors', 'factors': (1.0, 1.0, 2.0, 4.0)}
  engine = small.clock('a_edit', fields={'seconds': 0.8}, **unequal)
  for number in (1, 2, 3):
    uses = engine.advance(number * (8 + 8 + 4 + 2))
    counts = [sum(use.worker == i for use in uses) for i in range(N)]
    assert counts == [8, 8, 4, 2]
    assert max(use.seconds for use in uses) == pytest.approx(number * 0.8)
  waits = [span for span in engine.spans() if span.kind == 'wait']
  assert all(span.ended - span.began < 1e-9 for span in waits)


class Decoupled:
  """The algorithm on a network without time: a heap of the ends of steps."""

  def __init__(self, quorum, grace):
    self.numerics = small.numerics(plain=True)
    self.quorum, self.grace = quorum, grace
    initial = self.numerics.initial()
    self.common, self.buffer, self.merges = initial['params'], None, 0
    self.models = [initial] * N
    self.pushed, self.results = [None] * N, {}
    self.counts, self.steps, self.inbox = [0] * N, [0] * N, {}
    self.last = [np.inf] * N  # The seconds of the last step.
    self.queue = [(f / 10, i) for i, f in enumerate(FACTORS)]
    heapq.heapify(self.queue)

  def run(self, merges):
    closes = np.inf  # The end of the grace window.
    while self.merges < merges:
      time, i = self.queue[0]
      if closes < time:
        self.merge()
        closes = np.inf
        continue
      heapq.heapreplace(self.queue, (time + FACTORS[i] / 10, i))
      self.end_of_step(i, closes < np.inf)
      if len(self.inbox) >= self.quorum and closes == np.inf:
        closes = time + self.grace * min(self.last)
      if len(self.inbox) == N or closes <= time:
        self.merge()
        closes = np.inf

  def end_of_step(self, i, is_open):
    # The gradient is taken at the model of the previous step.
    model = self.models[i]
    (gradient,) = self.numerics.gradients([(model, i, self.steps[i])])
    rate = self.numerics.rate(0)
    model = self.numerics.update(model, gradient['grads'], rate)
    self.steps[i] += 1
    self.counts[i] += 1
    self.last[i] = FACTORS[i] / 10
    if i in self.results:
      new, is_in = self.results.pop(i)
      if is_in:  # Steps since the push remain.
        model = model | {
          'params': add((1, new), (1, model['params']), (-1, self.pushed[i]))
        }
      else:
        model, self.counts[i] = model | {'params': new}, 0
      self.pushed[i] = None
    enough = 1 if is_open else H
    if self.pushed[i] is None and self.counts[i] >= enough:
      change = add((1, self.common), (-1, model['params']))
      self.inbox[i] = self.counts[i], change
      self.pushed[i], self.counts[i] = model['params'], 0
    self.models[i] = model

  def merge(self):
    total = sum(count for count, _ in self.inbox.values())
    delta = add(*((n / total, change) for n, change in self.inbox.values()))
    first = self.buffer is None
    self.buffer = delta if first else add((0.9, self.buffer), (1, delta))
    self.common = add((1, self.common), (-0.7, delta), (-0.63, self.buffer))
    for i in range(N):
      self.results[i] = self.common, i in self.inbox
    self.inbox, self.merges = {}, self.merges + 1


@pytest.mark.parametrize('quorum, grace', [(1, 0.0), (2, 1.3), (4, 1.0)])
def test_learners_of_unequal_speed_are_merged_as_published(quorum, grace):
  fields = OUTER | {'local_steps': H, 'quorum': quorum, 'grace': grace}
  unequal = {'compute': 'factors', 'factors': FACTORS}
  engine = small.train('decoupled_diloco', plain=True, fields=fields, **unequal)
  while engine._models()[0].version < 9:
    engine.advance(engine.uses + 1)
  loop = Decoupled(quorum, grace)
  loop.run(9)
  found = engine.shared()['params']
  assert_close(jax.tree.map(lambda x: x[0], found), loop.common)


def test_no_learner_waits_on_a_slow_network():
  unequal = {'compute': 'factors', 'factors': FACTORS, **small.NETWORK}
  fields = {'local_steps': H, 'quorum': 2}
  engine = small.clock('decoupled_diloco', fields=fields, **unequal)
  engine.advance(100)
  assert engine._models()[0].version > 3
  assert {span.kind for span in engine.spans()} == {'compute'}


def test_a_round_is_one_merge_however_late_a_learner_is():
  """Late learners do not cause one merge each."""
  engine = small.clock(
    'decoupled_diloco', fields={'local_steps': 20}, compute='delays'
  )
  engine.advance(N * 200)
  assert 8 <= engine._models()[0].version <= 12
