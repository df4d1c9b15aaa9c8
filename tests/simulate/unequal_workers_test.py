"""Asynchronous methods against a separate event loop, on unequal workers.

The network takes no time, so the next event is always the end of a worker's
step. No two steps end together.
"""

import heapq

import jax
import numpy as np
import pytest

from tests.support import small

N = small.WORKERS
FACTORS = (1.0, 1.73, 3.13, 0.617)
TOTAL = 60


def mean(models):
  """The mean parameters."""
  return jax.tree.map(
    lambda *x: np.mean(np.stack(x), 0), *[model['params'] for model in models]
  )


class Loop:
  """Workers that compute gradients, and a rule for the next action of each.

  A subclass has `finish(i, step, grads)`, which records the gradients it uses
  and begins the next step of every worker that may continue. `draws` are the
  simulation's draws.
  """

  def __init__(self, draws, **fields):
    self.numerics, self.draws = small.numerics(), draws
    self.time, self.queue = 0.0, []
    self.steps, self.used = [0] * N, []
    self.models = [self.numerics.initial()] * N
    self.waiting = {}  # By worker, the event that it waits for.
    vars(self).update(fields)
    self.prepare()

  def prepare(self):
    """Sets the method's own state."""

  def begin(self, i):
    end = self.time + FACTORS[i] / 10
    heapq.heappush(self.queue, (end, i, self.steps[i], self.models[i]))
    self.steps[i] += 1

  def run(self):
    for i in range(N):
      self.begin(i)
    while len(self.used) < TOTAL:
      self.time, i, step, model = heapq.heappop(self.queue)
      (gradient,) = self.numerics.gradients([(model, i, step)])
      self.finish(i, step, gradient['grads'])

  def update(self, model, grads, clock=None, scale=1.0):
    clock = len(self.used) // N if clock is None else clock
    return self.numerics.update(model, grads, self.numerics.rate(clock) * scale)

  def local(self, i, step, grads):
    """A worker's local step."""
    self.models[i] = self.update(self.models[i], grads)
    self.used.append((i, step))

  def average(self, members):
    shared = mean([self.models[i] for i in members])
    for i in members:
      self.models[i] = self.models[i] | {'params': shared}

  def meet(self, i):
    """Lets a worker wait until all have arrived; then all average."""
    self.waiting[i] = None
    if len(self.waiting) == N:
      self.average(range(N))
      self.waiting = {}
      for j in range(N):
        self.begin(j)
      return True
    return False


class Asp(Loop):
  def prepare(self):
    self.pushes = [[0.0, 0.0] for _ in range(N)]

  def lead(self, i):
    clocks = [self.clock(j) for j in range(N)]
    return clocks[i] - min(clocks)

  def clock(self, i):
    return sum(worker == i for worker, _ in self.used)

  def finish(self, i, step, grads):
    self.models = [self.update(self.models[0], grads, scale=1 / N)] * N
    self.used.append((i, step))
    self.pushes[i] = [self.time, self.pushes[i][0]]
    self.waiting[i] = step
    granted = self.grants(i)
    for j in list(self.waiting):
      if (j == i and granted) or self.free(j):
        del self.waiting[j]
        self.begin(j)

  def grants(self, i):
    return False

  def free(self, i):
    return True


class Ssp(Asp):
  def free(self, i):
    return self.lead(i) <= self.staleness


class Dssp(Asp):
  def prepare(self):
    super().prepare()
    self.extra = [0] * N

  def free(self, i):
    return self.lead(i) <= self.s_low

  def grants(self, i):
    if self.extra[i]:
      self.extra[i] -= 1
      return True
    clocks = [self.clock(j) for j in range(N)]
    if self.free(i) or clocks[i] < max(clocks):
      return False
    r = self.closest(self.pushes[i], self.pushes[int(np.argmin(clocks))])
    if self.strict:
      r = min(r, self.s_low + self.r_max - self.lead(i))
    self.extra[i] = max(r, 0)
    return self.extra[i] > 0

  def closest(self, fast, slow):
    r = np.arange(self.r_max + 1)
    own = fast[0] + r * (fast[0] - fast[1])
    other = slow[0] + (r + 1) * (slow[0] - slow[1])
    return int(np.abs(other[None] - own[:, None]).min(1).argmin())


class Eager(Loop):
  def prepare(self):
    self.rounds, self.held = 0, []
    self.joined = {}  # By worker, its round and its step.
    self.results = [[] for _ in range(N)]  # Results not applied yet.

  def call(self, i, step):
    """The round that a worker joins."""
    return step

  def begins(self, i):
    draws = self.draws(1, self.rounds)
    return self.mode == 'solo' or i == int(np.argmax(draws))

  def finish(self, i, step, grads):
    self.held.append((i, step, grads))
    self.joined[i] = self.call(i, step), step
    if self.joined[i][0] == self.rounds and self.begins(i):
      self.round()
    done = [j for j, (call, _) in self.joined.items() if call < self.rounds]
    ended = {j: self.joined.pop(j)[1] for j in done}
    for j, step in ended.items():
      self.apply(j)
      self.proceed(j, step)

  def round(self):
    grads = [grads for _, _, grads in self.held]
    givers = len({i for i, _, _ in self.held})
    total = jax.tree.map(lambda *x: np.sum(x, 0) / self.divisor(givers), *grads)
    for results in self.results:
      results.append((total, len(self.used) // N, givers / N))
    self.used += sorted((i, step) for i, step, _ in self.held)
    self.held, self.rounds = [], self.rounds + 1

  def divisor(self, givers):
    return N

  def apply(self, i):
    for total, clock, _ in self.results[i][-1:]:
      self.models[i] = self.update(self.models[i], total, clock)
    self.results[i] = []

  def proceed(self, i, step):
    if (step + 1) % self.sync_every:
      self.begin(i)
    else:
      self.meet(i)


class Rna(Eager):
  def prepare(self):
    super().prepare()
    self.seen = [0] * N  # By worker, the rounds in its model.

  def call(self, i, step):
    return self.seen[i]

  def begins(self, i):
    return i in np.argsort(self.draws(2, self.rounds))[: self.probes]

  def divisor(self, givers):
    return givers

  def apply(self, i):
    for total, clock, share in self.results[i]:
      self.models[i] = self.update(self.models[i], total, clock, share)
    self.results[i], self.seen[i] = [], self.rounds

  def proceed(self, i, step):
    self.begin(i)


class Wagma(Loop):
  """A late worker adds its own model to the sum of its group."""

  def prepare(self):
    self.newest = [(-1, model) for model in self.models]
    self.begun = set()
    self.sums = [([], None)] * N

  def members(self, i, step):
    """The workers whose indices differ in one bit, another in each round."""
    assert (self.group, N) == (2, 4)
    return [i, i ^ (1 << step % 2)]

  def finish(self, i, step, grads):
    self.models[i] = self.update(self.models[i], grads)
    if (step + 1) % self.tau == 0:
      if self.meet(i):
        self.used += [(j, step) for j in range(N)]
      return
    self.used.append((i, step))
    members = self.members(i, step)
    self.newest[i] = step, self.models[i]
    if (step, min(members)) not in self.begun:
      self.begun.add((step, min(members)))
      models = [self.newest[j][1] for j in members]
      for j in members:
        own = step if self.newest[j][0] == step else None
        self.sums[j] = models, own
    models, own = self.sums[i]
    self.sums[i] = [], None
    models = models if own == step else [*models, self.models[i]]
    self.models[i] = self.models[i] | {'params': mean(models)}
    self.begin(i)


class AdPsgd(Loop):
  """After an exchange, both workers have the mean of the two."""

  def begin(self, i):
    step = self.steps[i]
    super().begin(i)
    if i % 2 == 0:  # While the gradient is computed, at the old model.
      passive = [1, 3]  # All passive workers, both neighbors in a ring of four.
      self.average([i, passive[self.draws(3, step)[i] % 2]])

  def finish(self, i, step, grads):
    self.local(i, step, grads)
    self.begin(i)


class Prague(Loop):
  def prepare(self):
    self.groups, self.divisions = {}, 0

  def finish(self, i, step, grads):
    self.local(i, step, grads)
    self.waiting[i] = step
    group = self.group(i)
    if set(group) <= set(self.waiting):
      self.average(group)
      for j in group:
        del self.waiting[j]
        self.groups.pop(j, None)
        self.begin(j)

  def group(self, i):
    if i not in self.groups:
      self.divisions += 1
      draws = self.draws(4, self.divisions)
      least = self.steps[i] - self.slowdown
      idle = [
        j for j in range(N) if j not in self.groups and self.steps[j] >= least
      ]
      idle.sort(key=draws.__getitem__)
      for k in range(0, len(idle), self.group_size):
        members = idle[k : k + self.group_size]
        self.groups |= dict.fromkeys(members, members)
    return self.groups[i]


@pytest.mark.parametrize(
  'method, reference, fields',
  [
    ('asp', Asp, {}),
    ('ssp', Ssp, {'staleness': 2}),
    ('dssp', Dssp, {'s_low': 2, 'r_max': 3, 'strict': True}),
    ('dssp', Dssp, {'s_low': 1, 'r_max': 3, 'strict': False}),
    ('eager', Eager, {'mode': 'solo', 'sync_every': 5}),
    ('eager', Eager, {'mode': 'majority', 'sync_every': 5}),
    ('rna', Rna, {'probes': 2}),
    ('wagma', Wagma, {'group': 2, 'tau': 5}),
    ('ad_psgd', AdPsgd, {'topology': 'ring'}),
    ('ad_psgd', AdPsgd, {'topology': 'complete'}),
    ('prague', Prague, {'group_size': 2, 'slowdown': 2.0}),
    ('prague', Prague, {'group_size': 3, 'slowdown': np.inf}),
  ],
)
def test_unequal_workers_train_as_the_paper_says(method, reference, fields):
  engine = small.train(
    method, fields=fields, compute='factors', factors=FACTORS
  )
  uses = engine.advance(TOTAL)
  loop = reference(engine.sim.draws, **fields)
  loop.run()
  uses.sort(key=lambda use: (use.seconds, use.worker))
  assert [(use.worker, use.step) for use in uses] == loop.used[:TOTAL]
  found = engine.shared()['params']
  for i, model in enumerate(loop.models):
    for x, y in zip(
      *map(jax.tree.leaves, (found, model['params'])), strict=True
    ):
      np.testing.assert_allclose(x[i], y, atol=1e-5)
