"""Methods with a partial all-reduce, whose rounds do not wait for all workers.

Each worker joins a round once per step. A worker that may begin the round does
so when it joins, and then all workers contribute the gradients that they hold.
A worker that joins after the round has begun keeps its gradient for the next
round, and does not wait if the round has ended.

References:
  Li et al., `Taming Unbalanced Training Workloads in Deep Learning with Partial
  Collective Operations`, PPoPP 2020, sections 4 and 5.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Literal, NamedTuple

from selsync_jax.config import Count
from selsync_jax.simulate.algebra import Value
from selsync_jax.simulate.meeting import synchronizations
from selsync_jax.simulate.simulation import (
  Gradient,
  Model,
  Models,
  Process,
  Settled,
  Signal,
  Simulation,
)

_INITIATOR, _PROBED = 1, 2  # Separate these draws from other methods'.


class Result(NamedTuple):
  """The result of a round, which all workers get."""

  mean: Value  # The divided sum of its gradients, of kind `sum`.
  contributors: int  # The number of workers that contributed.
  step: int  # Of the schedule.
  round: int  # The round's index.


class PartialAllReduce:
  """A sequence of rounds, each a mean of gradients.

  `may_begin(round, worker)` says whether the worker may begin the round, and
  `divisor(contributors)` divides the sum of its gradients.
  """

  def __init__(
    self,
    sim: Simulation,
    may_begin: Callable[[int, int], bool],
    divisor: Callable[[int], int],
  ):
    self._sim, self._may_begin, self._divisor = sim, may_begin, divisor
    self.rounds = 0  # Rounds that have ended.
    # By worker, gradients that no round has used, and results it has not seen.
    self.held: list[list[Gradient]] = [[] for _ in range(sim.workers)]
    self._unseen: list[list[Result]] = [[] for _ in range(sim.workers)]
    self._called = 0  # Rounds that a worker has called for.
    self._begun = 0  # Rounds whose contributions are fixed.
    self._began, self._ended = Signal(sim.env), Signal(sim.env)

  def join(self, call: int, gradient: Gradient) -> Process:
    """Contributes a worker's gradient and waits for the round `call`.

    Returns the `Result`s of the rounds that ended since the worker's last call.
    """
    sim, worker = self._sim, gradient.worker
    self.held[worker].append(gradient)
    if self._called == call and self._may_begin(call, worker):
      self._called += 1
      sim.env.process(self._round())
    yield from sim.wait_until(worker, lambda: self._begun > call, self._began)
    yield from sim.wait_until(
      worker, lambda: self.rounds > call, self._ended, 'communicate'
    )
    unseen, self._unseen[worker] = self._unseen[worker], []
    return unseen

  def _round(self) -> Process:
    sim = self._sim
    yield Settled(sim.env)  # Workers that come at this instant contribute.
    contributors = sum(bool(gradients) for gradients in self.held)
    gradients = [gradient for each in self.held for gradient in each]
    self.held = [[] for _ in self.held]
    self._begun += 1
    self._began.fire()
    yield sim.env.timeout(sim.seconds_of('all_reduce', sim.workers))
    values, step = [gradient.value for gradient in gradients], sim.step
    mean = sim.algebra.sum(values, 1 / self._divisor(contributors))
    for gradient in gradients:
      sim.use(gradient, self.rounds)
    for unseen in self._unseen:
      unseen.append(Result(mean, contributors, step, self.rounds))
    self.rounds += 1
    self._ended.fire()


def train_with(
  sim: Simulation,
  reduction: PartialAllReduce,
  apply: Callable[[Value, Sequence[Result]], Value],
  call: Callable[[Gradient], int],
  sync_every: int | None = None,
) -> Models:
  """Starts workers that apply the results of a partial all-reduce.

  `apply(model, results)` returns a worker's model after the results since
  its last step. The worker joins the round `call(gradient)`. The models are
  synchronized every `sync_every` steps, or never.
  """
  models = [Model(sim.algebra.initial(), 0)] * sim.workers
  synchronization = synchronizations(sim, models)

  def worker(i):
    while True:
      t = sim.steps[i]
      gradient = yield from sim.compute(i, models[i])
      results = yield from reduction.join(call(gradient), gradient)
      value = apply(models[i].value, results)
      value = sim.algebra.with_statistics(value, [gradient.value])
      models[i] = Model(value, reduction.rounds)
      if sync_every and (t + 1) % sync_every == 0:
        yield from synchronization(t).attend(i)

  sim.start(worker)
  return lambda: models


def eager(
  sim: Simulation,
  *,
  mode: Literal['solo', 'majority'] = 'solo',
  sync_every: Count = 100,
) -> Models:
  """Applies, at each step, the sum of a partial all-reduce divided by N.

  This is eager-SGD. A late gradient goes into a later round. A worker that is
  late for several rounds sees only the last one's result, so the models drift
  apart and are synchronized periodically.

  Where the paper says nothing: a worker applies a result once, even if it takes
  several steps before the next result. It joins round t with its t-th gradient,
  so `majority` waits for a worker that is always slow.

  Args:
    mode: the worker that begins a round: in `solo` the first that joins, in
      `majority` a random one, so that half of the workers have joined on
      average.
    sync_every: steps of each worker from one synchronization of the models to
      the next; the paper's is 10 epochs.

  References:
    Li et al., `Taming Unbalanced Training Workloads in Deep Learning with
    Partial Collective Operations`, PPoPP 2020, Algorithm 2.
  """

  @functools.lru_cache
  def drawn(number):
    draws = sim.draws(_INITIATOR, number)
    return draws.index(max(draws))

  def may_begin(number, worker):
    return mode == 'solo' or worker == drawn(number)

  def apply(model, results):
    for result in results[-1:]:  # Later rounds overwrite earlier ones.
      model = sim.algebra.update(model, result.mean, result.step)
    return model

  reduction = PartialAllReduce(sim, may_begin, lambda givers: sim.workers)
  return train_with(sim, reduction, apply, lambda g: g.step, sync_every)


def rna(sim: Simulation, *, probes: Count = 2) -> Models:
  """Applies a partial all-reduce that the first of a few random workers begins.

  This is RNA, randomized non-blocking all-reduce. In each round a controller
  probes a few random workers, and the first of them that is ready starts an
  all-reduce of all workers. Ready workers contribute the gradients that they
  have accumulated, the others nothing. The mean is over contributors, and the
  learning rate is scaled by their share. The abstract leaves two details open.
  Here accumulated gradients are added without weights, as in eager-SGD. A
  worker that joins after its round has begun continues to compute, and applies
  the results of all rounds that it missed, so the models stay equal. The
  hierarchical mode, with groups of equal speed, is left out.

  Args:
    probes: q, the number of workers that the controller probes in each round;
      the power of two choices says 2.

  References:
    Yang, Rang and Cheng, `Mitigating Stragglers in the Decentralized Training
    on Heterogeneous Clusters`, Middleware 2020; from the abstract and from
    memory.
  """
  if probes > sim.workers:
    raise ValueError(f'probes={probes}: must be at most workers={sim.workers}')

  @functools.lru_cache
  def probed(number):
    draws = sim.draws(_PROBED, number)
    return sorted(range(sim.workers), key=draws.__getitem__)[:probes]

  newest = Model(sim.algebra.initial(), 0)  # All workers have the same model.

  def apply(_model, results):
    nonlocal newest
    for mean, contributors, step, number in results:
      if number == newest.version:  # This worker is the first to apply it.
        share = contributors / sim.workers
        value = sim.algebra.update(newest.value, mean, step, share)
        newest = Model(value, number + 1)
    return newest.value

  reduction = PartialAllReduce(
    sim,
    lambda number, worker: worker in probed(number),
    lambda givers: givers,
  )
  return train_with(sim, reduction, apply, lambda g: g.version)
