"""Partial all-reduce: a round does not wait for all workers.

Each worker joins a round once per step. A worker that may begin the round does
so when it comes, and then all workers contribute the gradients that they hold.
A worker that comes after the round has begun keeps its gradient for the next
one. A worker that comes after the round has ended does not wait.

References:
  Li et al., `Taming Unbalanced Training Workloads in Deep Learning with Partial
  Collective Operations`, PPoPP 2020, sections 4 and 5.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from selsync_jax.simulate.meeting import synchronizations
from selsync_jax.simulate.simulation import Gradient
from selsync_jax.simulate.simulation import Model
from selsync_jax.simulate.simulation import Models
from selsync_jax.simulate.simulation import Process
from selsync_jax.simulate.simulation import Simulation
from selsync_jax.simulate.values import Value


class Result(NamedTuple):
  """The result of a round, which all workers get.

  Attributes:
    mean: the divided sum of its gradients, a value of kind `sum`.
    contributors: the number of workers that contributed.
    round: the round's index.
  """

  mean: Value
  contributors: int
  round: int


class PartialAllReduce:
  """A sequence of rounds, each a mean of gradients.

  Attributes:
    rounds: the number of rounds that have ended.
    held: each worker's gradients that no round has used yet.

  Args:
    sim: the simulation.
    may_begin: `may_begin(round, worker)`, whether the worker may begin it.
    divisor: `divisor(contributors)`, which divides the sum of the gradients.
  """

  def __init__(
    self,
    sim: Simulation,
    may_begin: Callable[[int, int], bool],
    divisor: Callable[[int], int],
  ):
    self._sim, self._may_begin, self._divisor = sim, may_begin, divisor
    self.rounds = 0
    self.held: list[list[Gradient]] = [[] for _ in range(sim.workers)]
    self._unseen: list[list[Result]] = [[] for _ in range(sim.workers)]
    self._called = 0  # Rounds that a worker has called for.
    self._begun = 0  # Rounds whose contributions are fixed.
    self._began, self._ended = sim.signal(), sim.signal()

  def join(self, call: int, gradient: Gradient) -> Process:
    """Contributes a worker's gradient and waits for a round.

    Args:
      call: the round's index.
      gradient: the worker's gradient.

    Returns:
      The `Result`s of the rounds that ended since its last call.
    """
    sim, worker = self._sim, gradient.worker
    self.held[worker].append(gradient)
    if self._called == call and self._may_begin(call, worker):
      self._called += 1
      sim.process(self._round())
    yield from sim.wait_until(worker, lambda: self._begun > call, self._began)
    yield from sim.wait_until(
      worker, lambda: self.rounds > call, self._ended, 'communicate'
    )
    unseen, self._unseen[worker] = self._unseen[worker], []
    return unseen

  def _round(self) -> Process:
    sim = self._sim
    yield sim.settled()  # Workers that come at this instant contribute.
    contributors = sum(bool(gradients) for gradients in self.held)
    gradients = [gradient for each in self.held for gradient in each]
    self.held = [[] for _ in self.held]
    self._begun += 1
    self._began.fire()
    yield sim.env.timeout(sim.seconds_of('all_reduce', sim.workers))
    mean = sim.algebra.sum(
      [gradient.value for gradient in gradients],
      1 / self._divisor(contributors),
    )
    for gradient in gradients:
      sim.use(gradient, self.rounds)
    for unseen in self._unseen:
      unseen.append(Result(mean, contributors, self.rounds))
    self.rounds += 1
    self._ended.fire()


def train_with(
  sim: Simulation,
  reduction: PartialAllReduce,
  apply: Callable[[Value, Sequence[Result], int], Value],
  call: Callable[[Gradient], int],
  sync_every: int | None = None,
) -> Models:
  """Starts workers that apply the results of a partial all-reduce.

  Args:
    sim: the simulation.
    reduction: the partial all-reduce.
    apply: `apply(model, results, step)`, which returns a worker's model after
      the results since its last step.
    call: `call(gradient)`, the round that a worker joins with a gradient.
    sync_every: steps from one synchronization of the models to the next; `None`
      is never.
  """
  models = [Model(sim.algebra.initial(), 0)] * sim.workers
  synchronization = synchronizations(sim, models)

  def worker(i):
    while True:
      t = sim.steps[i]
      gradient = yield from sim.compute(i, models[i])
      results = yield from reduction.join(call(gradient), gradient)
      value = apply(models[i].value, results, t)
      value = sim.algebra.with_statistics(value, [gradient.value])
      models[i] = Model(value, reduction.rounds)
      if sync_every and (t + 1) % sync_every == 0:
        yield from synchronization(t).attend(i)

  sim.start(worker)
  return lambda: models
