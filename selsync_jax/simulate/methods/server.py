"""A parameter server, which owns the model and receives gradients.

All workers share the server's link, in each direction. The server adds up
gradients that arrive at the same instant, as DSSP's server does, and applies
each gradient with 1/N of the learning rate: N gradients move the model as far
as one BSP step, and N that arrive together are a BSP step. (The papers give no
scaling; they tune the rate for the method.) The schedule advances by one step
every N gradients. Batch statistics are those of the workers that pushed last.
"""

from collections.abc import Callable

import simpy

from selsync_jax.simulate.simulation import Gradient
from selsync_jax.simulate.simulation import Model
from selsync_jax.simulate.simulation import Models
from selsync_jax.simulate.simulation import Process
from selsync_jax.simulate.simulation import Simulation


class Server:
  """A parameter server.

  Attributes:
    model: the model; its version counts gradients.
    clocks: the number of each worker's gradients that were applied.
    pushes: the times at which each worker's last gradient and the one before it
      were applied, in seconds; 0 if there was none.
    progress: a signal that fires after the clocks have changed.
  """

  def __init__(self, sim: Simulation):
    self._sim = sim
    self.model = Model(sim.algebra.initial(), 0)
    self.clocks = [0] * sim.workers
    self.pushes = [(0.0, 0.0)] * sim.workers
    self.progress = sim.signal()
    self._inbox: list[Gradient] = []
    self._arrival = sim.signal()
    self._up, self._down = simpy.Resource(sim.env), simpy.Resource(sim.env)
    sim.process(self._serve())

  def lead(self, worker: int) -> int:
    """Returns how many steps a worker is ahead of the slowest."""
    return self.clocks[worker] - min(self.clocks)

  def pull(self, worker: int) -> Process:
    """Sends the model to a worker; returns it as of the request."""
    model = self.model
    yield from self._sim.message(worker, self._down, self._sim.nbytes)
    return model

  def push(self, worker: int, gradient: Gradient) -> Process:
    """Sends a worker's gradient, and waits until it is applied."""
    yield from self._sim.message(worker, self._up, self._sim.nbytes)
    self._inbox.append(gradient)
    self._arrival.fire()
    yield self.progress.next

  def _serve(self) -> Process:
    while True:
      yield self._arrival.next
      yield self._sim.settled()
      self._apply()
      self.progress.fire()

  def _apply(self) -> None:
    sim, algebra, (value, version) = self._sim, self._sim.algebra, self.model
    arrived, self._inbox = self._inbox, []
    values = [gradient.value for gradient in arrived]
    count, workers = len(arrived), sim.workers
    total = algebra.sum(values, 1 / count)
    value = algebra.update(value, total, version // workers, count / workers)
    value = algebra.with_statistics(value, values)
    self.model = Model(value, version + count)
    for gradient in arrived:
      worker = gradient.worker
      self.clocks[worker] += 1
      self.pushes[worker] = sim.now, self.pushes[worker][0]
      sim.use(gradient, version)


def train_with(
  sim: Simulation,
  server: Server,
  allow: Callable[[int], Process] | None = None,
) -> Models:
  """Starts the workers of a server.

  Args:
    sim: the simulation.
    server: the workers' server.
    allow: `allow(worker)`, which ends when a worker that has pushed may
      continue; `None`: immediately.
  """

  def worker(i):
    while True:
      model = yield from server.pull(i)
      gradient = yield from sim.compute(i, model)
      yield from server.push(i, gradient)
      if allow:
        yield from allow(i)

  sim.start(worker)
  return lambda: [server.model]
