"""Asynchronous DiLoCo: local rounds, and a server that never waits.

A worker takes local steps from the server's parameters and then sends the
change. The server applies it at once. Momentum on updates from different
parameters is unstable, so the server applies it once every N arrivals, to the
mean of those updates (delayed Nesterov). N updates that arrive together are a
step of DiLoCo. All workers share the server's link, in each direction.

References:
  Liu et al., `Asynchronous Local-SGD Training for Language Modeling`, 2024
  (arXiv 2401.09135), delayed Nesterov with c = 0, and dynamic local updates.
"""

from selsync_jax.config import Count, Positive, Share
from selsync_jax.simulate.algebra import Value
from selsync_jax.simulate.asynchronous.server import Server
from selsync_jax.simulate.simulation import Model, Models, Simulation


class OuterServer(Server):
  """A server that applies a worker's update when it arrives."""

  def __init__(self, sim: Simulation, rate: float, momentum: float):
    super().__init__(sim, sim.algebra.mean([sim.algebra.initial()]))
    self._rate, self._decay = rate, momentum
    self._sum: list[Value] = []  # Updates since the last momentum, added up.
    self._momentum: list[Value] = []  # Empty before the first N arrivals.

  def apply(self, arrived: list[Value]) -> None:
    for update in arrived:
      self._apply(update)

  def _apply(self, update: Value) -> None:
    linear, workers = self._sim.algebra.linear, self._sim.workers
    value, version = self.model
    self._sum = [linear([1.0] * (1 + len(self._sum)), [*self._sum, update])]
    value = linear([1.0, -self._rate / workers], [value, update])
    if (version + 1) % workers == 0:
      weights = [1 / workers, self._decay]
      terms = [*self._sum, *self._momentum]
      self._momentum = [linear(weights[: len(terms)], terms)]
      step = -self._rate * self._decay
      value = linear([step, 1.0], [*self._momentum, value])
      self._sum = []
    self.model = Model(value, version + 1)


def async_diloco(
  sim: Simulation,
  *,
  local_steps: Count = 50,
  rate: Positive = 0.7,
  momentum: Share = 0.9,
  dynamic: bool = False,
) -> Models:
  """Moves a server by each worker's local round, with delayed momentum.

  Without momentum and with the rate 1 it is asynchronous local SGD.

  Args:
    local_steps: H, the local steps in a round.
    rate: the outer learning rate; DiLoCo's is 0.7.
    momentum: the outer momentum, in [0, 1).
    dynamic: whether a slow worker takes fewer local steps in a round, in
      proportion to its speed, so that all rounds last equally long.
  """
  server, algebra = OuterServer(sim, rate, momentum), sim.algebra
  seconds = [0.0] * sim.workers  # Of each worker's last local step.

  def round_of(i):
    if not dynamic or not all(seconds):
      return local_steps
    return max(1, int(local_steps * min(seconds) / seconds[i] + 1e-6))

  def worker(i):
    model = algebra.initial()
    while True:
      start, version = server.model
      yield from sim.message(i, server.down)
      model = algebra.with_shared(model, start)
      for _ in range(round_of(i)):
        gradient, (model, _) = yield from sim.local_step(
          i, Model(model, version)
        )
        seconds[i] = sim.env.now - gradient.began
        sim.use(gradient, server.model.version)
      yield from sim.message(i, server.up)
      yield from server.push(algebra.linear([1.0, -1.0], [start, model]))

  sim.start(worker)
  return lambda: [server.model]
