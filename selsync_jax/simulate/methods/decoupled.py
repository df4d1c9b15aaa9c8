"""Decoupled DiLoCo: learners that never wait, and a syncer that merges.

A learner takes local steps all the time. After H of them it sends how far it
has come since the parameters that it got last. The syncer waits for a quorum of
learners, and then for a grace window in which others may come. It merges what
has come, weighted by the steps in it, takes an outer step, and sends the result
to those whose part is in it. A learner adds the steps that it has taken in the
meantime to what it gets.

The paper weighs by tokens times tokens per step; batches here are equally
large, so that is the number of steps. It merges fragment by fragment, with
radial-directional averages; here the model is one fragment, and the average is
plain. That a learner keeps its steps of the meantime, and the length of the
window, are ours.

References:
  Douillard et al., `Decoupled DiLoCo for Resilient Distributed Pre-training`,
  2026 (arXiv 2604.21428).
"""

import simpy

from selsync_jax.config import Count
from selsync_jax.config import NonNegative
from selsync_jax.config import Positive
from selsync_jax.config import Share
from selsync_jax.simulate.algebra import Value
from selsync_jax.simulate.outer import OuterStep
from selsync_jax.simulate.simulation import Model
from selsync_jax.simulate.simulation import Models
from selsync_jax.simulate.simulation import Process
from selsync_jax.simulate.simulation import Settled
from selsync_jax.simulate.simulation import Signal
from selsync_jax.simulate.simulation import Simulation

Push = tuple[Value, int]
"""What a learner sends: where it began minus where it is, of kind `shared`, and
the number of local steps in it."""


class Syncer:
  """The process that merges what learners send."""

  def __init__(
    self, sim: Simulation, quorum: int, grace: float, step: OuterStep
  ):
    self._sim, self._quorum, self._grace = sim, quorum, grace
    self._step = step
    initial = sim.algebra.mean([sim.algebra.initial()])
    self.model = Model(initial, 0)  # Its version: of merges.
    self.up, self.down = simpy.Resource(sim.env), simpy.Resource(sim.env)
    self.results: dict[int, Model] = {}  # By learner, what it has not seen.
    self.seconds = [0.0] * sim.workers  # Of each learner's last step.
    self._inbox: dict[int, Push] = {}  # By learner.
    self._arrival = Signal(sim.env)
    sim.env.process(self._serve())

  def deliver(self, learner: int, push: Push) -> Process:
    """Carries a push to the syncer."""
    yield from self._sim.transfer(self.up)
    self._inbox[learner] = push
    self._arrival.fire()

  def _return(self, learner: int, model: Model) -> Process:
    yield from self._sim.transfer(self.down)
    self.results[learner] = model

  def _serve(self) -> Process:
    env, workers = self._sim.env, self._sim.workers
    while True:
      while len(self._inbox) < self._quorum:
        yield self._arrival.next
      ends = env.timeout(self._grace * min(filter(None, self.seconds)))
      while len(self._inbox) < workers and not ends.processed:
        yield ends | self._arrival.next
      yield Settled(env)  # Pushes that come at this instant are merged.
      merged, self._inbox = self._inbox, {}
      self._merge(list(merged.values()))
      for learner in merged:
        env.process(self._return(learner, self.model))

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
  """Merges the learners that have come, and keeps none waiting.

  Args:
    local_steps: H, the fewest local steps from one push of a learner to its
      next.
    quorum: the number of learners without which nothing is merged.
    grace: the window after the quorum, in steps of the fastest learner.
    rate: the outer learning rate; that of DiLoCo is 0.7.
    momentum: the outer momentum, in [0, 1).
  """
  if quorum > sim.workers:
    raise ValueError(f'quorum={quorum}: there are {sim.workers} workers')
  algebra = sim.algebra
  syncer = Syncer(sim, quorum, grace, OuterStep(algebra, rate, momentum))

  def worker(i):
    model = algebra.initial()
    start, version = syncer.model
    pushed = None  # The model at the last push, until its result is here.
    steps = 0
    while True:
      gradient = yield from sim.compute(i, Model(model, version))
      syncer.seconds[i] = sim.env.now - gradient.began
      model = algebra.update(model, gradient.value, sim.step)
      model = algebra.with_statistics(model, [gradient.value])
      sim.use(gradient, syncer.model.version)
      steps += 1
      if pushed is not None and i in syncer.results:
        start, version = syncer.results.pop(i)
        own = algebra.linear([1.0, -1.0, 1.0], [start, pushed, model])
        model, pushed = algebra.with_shared(model, own), None
      if pushed is None and steps >= local_steps:
        change = algebra.linear([1.0, -1.0], [start, model])
        sim.env.process(syncer.deliver(i, (change, steps)))
        pushed, steps = algebra.mean([model]), 0

  sim.start(worker)
  return lambda: [syncer.model]
