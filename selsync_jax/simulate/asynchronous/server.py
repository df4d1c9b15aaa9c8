"""Methods with a parameter server, which owns the model and receives gradients.

All workers share the server's link, in each direction. The server adds up
gradients that arrive at the same instant, as DSSP's server does, and applies
each gradient with 1/N of the learning rate: N gradients move the model as far
as one BSP step, and N that arrive together are a BSP step. (The papers give no
scaling; they tune the rate for the method.) Batch statistics come from the
workers that pushed last.
"""

import abc
from collections.abc import Callable
from typing import Any

import simpy

from selsync_jax.config import Index
from selsync_jax.simulate.algebra import Value
from selsync_jax.simulate.simulation import (
  Gradient,
  Model,
  Models,
  Process,
  Settled,
  Signal,
  Simulation,
)

Pushes = tuple[float, float]
"""The times at which a worker's last gradient and the one before it were
applied, in seconds; 0 if there was none."""


class Server(abc.ABC):
  """A model that moves by the items that arrive at one instant."""

  def __init__(self, sim: Simulation, value: Value):
    self._sim, self.model = sim, Model(value, 0)  # Its version: of arrivals.
    self.moved = Signal(sim.env)
    self._inbox: list[Any] = []
    self._arrival = Signal(sim.env)
    self.up, self.down = simpy.Resource(sim.env), simpy.Resource(sim.env)
    sim.env.process(self._serve())

  def push(self, item: Any) -> Process:
    """Delivers a worker's item, and waits until it is applied."""
    self._inbox.append(item)
    self._arrival.fire()
    yield self.moved.next

  @abc.abstractmethod
  def apply(self, arrived: list[Any]) -> None:
    """Moves the model by the items that have arrived."""

  def _serve(self) -> Process:
    while True:
      yield self._arrival.next
      yield Settled(self._sim.env)
      self.apply(self._inbox)
      self._inbox = []
      self.moved.fire()


class GradientServer(Server):
  """A model that moves by the mean of the gradients that arrive together."""

  def __init__(self, sim: Simulation):
    super().__init__(sim, sim.algebra.initial())
    self.clocks = [0] * sim.workers  # Gradients applied, by worker.
    self.pushes: list[Pushes] = [(0.0, 0.0)] * sim.workers

  def lead(self, worker: int) -> int:
    """Returns how many steps a worker is ahead of the slowest."""
    return self.clocks[worker] - min(self.clocks)

  def wait_for_lead(self, worker: int, bound: int) -> Process:
    """Lets a worker wait until its lead is at most `bound` steps."""
    return self._sim.wait_until(
      worker, lambda: self.lead(worker) <= bound, self.moved
    )

  def train(self, allow: Callable[[int], Process] | None = None) -> Models:
    """Starts the workers.

    `allow(worker)` ends when a worker that has pushed may continue; without it,
    the worker continues immediately.
    """

    def worker(i):
      while True:
        model = self.model  # As of the request.
        yield from self._sim.message(i, self.down)
        gradient = yield from self._sim.compute(i, model)
        yield from self._sim.message(i, self.up)
        yield from self.push(gradient)
        if allow:
          yield from allow(i)

    self._sim.start(worker)
    return lambda: [self.model]

  def apply(self, arrived: list[Gradient]) -> None:
    sim, algebra, (value, version) = self._sim, self._sim.algebra, self.model
    values = [gradient.value for gradient in arrived]
    count = len(arrived)
    total = algebra.sum(values, 1 / count)
    value = algebra.update(value, total, sim.step, count / sim.workers)
    value = algebra.with_statistics(value, values)
    self.model = Model(value, version + count)
    for gradient in arrived:
      worker = gradient.worker
      self.clocks[worker] += 1
      self.pushes[worker] = sim.env.now, self.pushes[worker][0]
      sim.use(gradient, version)


def asp(sim: Simulation) -> Models:
  """Pushes gradients to a parameter server and pulls its model.

  No worker waits for another (asynchronous parallel training), only for its
  turn on the server's link.

  References:
    Dean et al., `Large Scale Distributed Deep Networks`, NIPS 2012 (Downpour
    SGD, with one step from one fetch to the next).
  """
  return GradientServer(sim).train()


def ssp(sim: Simulation, *, staleness: Index = 3) -> Models:
  """Bounds a worker's lead over the slowest when it begins a step.

  Args:
    staleness: s, the bound in steps; 0 is BSP by a parameter server. Tyagi and
      Swany use 100 and 200, Zhao et al. (DSSP) 3 to 15.

  References:
    Ho et al., `More Effective Distributed ML via a Stale Synchronous Parallel
    Parameter Server`, NIPS 2013.
  """
  server = GradientServer(sim)
  return server.train(lambda p: server.wait_for_lead(p, staleness))


def controller(fastest: Pushes, slowest: Pushes, r_max: int) -> int:
  """Returns how many steps beyond its bound the fastest worker may take (r*).

  It predicts the next pushes of the fastest and the slowest worker from their
  last pushes. It chooses the number of steps, at most `r_max`, that brings the
  fastest closest to a push of the slowest.
  """
  interval = fastest[0] - fastest[1], slowest[0] - slowest[1]
  steps = range(r_max + 1)

  def shortest_wait(r):
    own = fastest[0] + r * interval[0]
    return min(abs(slowest[0] + (k + 1) * interval[1] - own) for k in steps)

  return min(steps, key=shortest_wait)


def dssp(
  sim: Simulation, *, s_low: Index = 3, r_max: Index = 12, strict: bool = True
) -> Models:
  """Bounds leads as SSP does, with a bound from `s_low` to `s_low + r_max`.

  A worker that has reached the lower bound may be granted more steps: the
  number with the shortest predicted wait for the slowest worker, by the last
  two pushes of both.

  As printed, the fastest worker is granted more steps each time it reaches its
  bound, so its lead is not bounded by `s_low + r_max`. The text promises that
  bound; `strict` keeps it.

  Args:
    s_low: s_L, the lower bound on a worker's lead over the slowest, in steps;
      3 is the paper's.
    r_max: largest number of steps that the controller grants; 12 is the
      paper's.
    strict: whether a grant ends at a lead of `s_low + r_max`, which the text
      promises; `False` is Algorithm 1 as printed.

  References:
    Zhao et al., `Dynamic Stale Synchronous Parallel Distributed Training for
    Deep Learning`, ICDCS 2019, Algorithms 1 and 2. As printed, line 17 (wait)
    also follows line 14 (OK), which must be a misprint; ours returns there.
    There is no official code.
  """
  server = GradientServer(sim)
  extra = [0] * sim.workers  # r, the granted steps that are left.

  def grant(p):
    slowest = server.clocks.index(min(server.clocks))
    r = controller(server.pushes[p], server.pushes[slowest], r_max)
    return min(r, s_low + r_max - server.lead(p)) if strict else r

  def allow(p):
    if extra[p] > 0:
      extra[p] -= 1
      return
    if server.lead(p) > s_low and server.clocks[p] == max(server.clocks):
      extra[p] = max(0, grant(p))
      if extra[p] > 0:
        return
    yield from server.wait_for_lead(p, s_low)

  return server.train(allow)
