"""Decoupled DiLoCo: learners that never wait, and a syncer that merges.

A learner takes local steps all the time. When a quorum of learners has taken H
steps since the last merge, a grace window begins: every learner that ends a
step in the window sends its progress, whatever its number of steps. The syncer
merges the progress, weighted by steps, takes an outer step, and sends the
result to all learners. A learner that has sent its progress adds the steps that
it has taken in the meantime; the others restart from the result.

The paper weighs by tokens times tokens per step; batches here are equally
large, so the weight is the number of steps. The paper merges fragment by
fragment, with radial-directional averages; here the model is one fragment, and
the average is plain. Two details are ours: the length of the window, and that a
learner keeps the steps it has taken in the meantime.

References:
  Douillard et al., `Decoupled DiLoCo for Resilient Distributed Pre-training`,
  2026 (arXiv 2604.21428).
"""

import simpy

from selsync_jax.config import Count, NonNegative, Positive, Share
from selsync_jax.simulate.algebra import OuterStep, Value
from selsync_jax.simulate.simulation import (
  Model,
  Models,
  Process,
  Settled,
  Signal,
  Simulation,
)

Push = tuple[Value, int]
"""A learner's progress: the syncer's model minus the learner's, of kind
`shared`, and the number of local steps in it."""


class Syncer:
  """The process that merges the progress of learners."""

  def __init__(
    self, sim: Simulation, quorum: int, grace: float, step: OuterStep
  ):
    self._sim, self._quorum, self._grace = sim, quorum, grace
    self._step = step
    initial = sim.algebra.mean([sim.algebra.initial()])
    self.model = Model(initial, 0)  # Its version: of merges.
    self.is_open = False  # Whether a grace window is open.
    self.up, self.down = simpy.Resource(sim.env), simpy.Resource(sim.env)
    # By learner, the result it has not seen, and whether its progress is in it.
    self.results: dict[int, tuple[Model, bool]] = {}
    self.seconds = [0.0] * sim.workers  # Of each learner's last step.
    self._inbox: dict[int, Push] = {}  # By learner.
    self._arrival = Signal(sim.env)
    sim.env.process(self._serve())

  def deliver(self, learner: int, version: int, push: Push) -> Process:
    """Carries a push to the syncer, which drops pushes for old models."""
    yield from self._sim.transfer(self.up)
    if version == self.model.version:
      self._inbox[learner] = push
      self._arrival.fire()

  def _return(self, learner: int, model: Model, is_in: bool) -> Process:
    yield from self._sim.transfer(self.down)
    self.results[learner] = model, is_in

  def _serve(self) -> Process:
    env, workers = self._sim.env, self._sim.workers
    while True:
      while len(self._inbox) < self._quorum:
        yield self._arrival.next
      self.is_open = True
      ends = env.timeout(self._grace * min(filter(None, self.seconds)))
      while len(self._inbox) < workers and not ends.processed:
        yield ends | self._arrival.next
      yield Settled(env)  # Pushes that come at this instant are merged.
      self.is_open = False
      merged, self._inbox = self._inbox, {}
      self._merge(list(merged.values()))
      for learner in range(workers):
        env.process(self._return(learner, self.model, learner in merged))

  def _merge(self, pushes: list[Push]) -> None:
    changes, steps = zip(*pushes, strict=True)
    weights = [each / sum(steps) for each in steps]
    gradient = self._sim.algebra.linear(weights, changes)
    value, version = self.model
    self.model = Model(self._step(value, gradient), version + 1)


def decoupled_diloco(
  sim: Simulation,
  *,
  local_steps: Count = 50,
  quorum: Count = 1,
  grace: NonNegative = 1.0,
  rate: Positive = 0.7,
  momentum: Share = 0.9,
) -> Models:
  """Merges the learners that are ready, and lets none wait.

  Args:
    local_steps: H, the local steps after a merge until a learner counts for the
      next quorum.
    quorum: the number of such learners that a merge needs.
    grace: the window after the quorum, in steps of the fastest learner.
    rate: the outer learning rate; DiLoCo's is 0.7.
    momentum: the outer momentum, in [0, 1).
  """
  if quorum > sim.workers:
    raise ValueError(f'quorum={quorum}: must be at most workers={sim.workers}')
  algebra = sim.algebra
  syncer = Syncer(sim, quorum, grace, OuterStep(algebra, rate, momentum))

  def worker(i):
    model, version = algebra.initial(), 0
    pushed = None  # The model of its last push, until a result arrives.
    steps = 0  # Since then, or since the last result.
    while True:
      gradient, (model, _) = yield from sim.local_step(i, Model(model, version))
      syncer.seconds[i] = sim.env.now - gradient.began
      sim.use(gradient, syncer.model.version)
      steps += 1
      if i in syncer.results:
        (value, version), is_in = syncer.results.pop(i)
        if is_in and pushed is not None:  # If in, it pushed.
          value = algebra.linear([1.0, -1.0, 1.0], [value, pushed, model])
        else:
          steps = 0
        model, pushed = algebra.with_shared(model, value), None
      is_asked = steps >= local_steps or (syncer.is_open and steps)
      if is_asked and pushed is None and version == syncer.model.version:
        change = algebra.linear([1.0, -1.0], [syncer.model.value, model])
        sim.env.process(syncer.deliver(i, version, (change, steps)))
        pushed, steps = algebra.mean([model]), 0

  sim.start(worker)
  return lambda: [syncer.model]
