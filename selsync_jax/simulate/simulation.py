"""The simulation that runs a method: a clock, workers, links, and a record.

A method starts one SimPy process per worker, and more where its paper has more
(a parameter server, a group generator). A process takes time by `compute`,
`message`, `wait_until` and `hold` (also for the `seconds_of` a collective), all
of them generators for `yield from`. Times depend on the cluster and the seed
alone, never on an array.
"""

from collections.abc import Callable, Generator, Sequence
import contextlib
from typing import Any, NamedTuple

import numpy as np
import simpy
from simpy.events import EventPriority, NORMAL

from selsync_jax.data import draws
from selsync_jax.simulate.algebra import Algebra, Value
from selsync_jax.simulate.cluster import VirtualCluster
from selsync_jax.simulate.numerics import Numerics
from selsync_jax.sync.traffic import Collective

_STREAM = 0x51  # Makes these draws independent of all others of a seed.

Process = Generator[simpy.Event, Any, Any]


class Model(NamedTuple):
  """A model after a number of updates."""

  value: Value  # Of kind `model`.
  version: int  # The number of its updates, by the method's count.


class Gradient(NamedTuple):
  """The gradient of one worker's step."""

  value: Value  # Of kind `gradient`.
  worker: int
  step: int  # The index of the worker's step.
  version: int  # Of the model at which it was computed.
  began: float  # The virtual seconds at which the computation began.


class Use(NamedTuple):
  """The record of a gradient that reached the model, without its arrays."""

  worker: int
  step: int  # The index of the worker's step.
  began: float  # The virtual seconds at which the computation began.
  seconds: float  # The virtual seconds at which it reached the model.
  staleness: int  # The number of updates of the model since its version.
  metrics: Value  # Of its batch; of kind `metrics`.
  sent: float  # Bytes that all workers and servers had sent by then.


class Span(NamedTuple):
  """An interval, in virtual seconds, in which a worker did one thing."""

  worker: int
  kind: str  # 'compute', 'wait' or 'communicate'.
  began: float
  ended: float
  version: int  # Of the worker's model.


class Settled(simpy.Event):
  """An event that comes after all others of the same instant."""

  def __init__(self, env: simpy.Environment):
    super().__init__(env)
    self._ok, self._value = True, None
    env.schedule(self, priority=EventPriority(NORMAL + 1))


class Signal:
  """An event that repeats, and that processes wait for."""

  def __init__(self, env: simpy.Environment):
    self.next = env.event()

  def fire(self) -> None:
    """Wakes every process that waits for `next`."""
    fired, self.next = self.next, self.next.env.event()
    fired.succeed()


class Simulation:
  """A cluster that trains on a virtual clock.

  A message has `nbytes`: the parameters and batch statistics. Without
  `compute`, only the clock runs, and no arrays are computed. `seed` is for
  `draws`. Before a step, a worker waits for the exchange of `injected` bytes of
  examples, which the ledger counts.
  """

  def __init__(
    self,
    cluster: VirtualCluster,
    nbytes: float,
    compute: Numerics | None = None,
    seed: int = 0,
    injected: float = 0.0,
  ):
    self.env = simpy.Environment()
    self.algebra, self.nbytes = Algebra(compute), nbytes
    self.network = cluster.network
    self.workers = cluster.network.workers
    self.steps = [0] * self.workers  # Gradients begun, by worker.
    self.versions = [0] * self.workers  # The model's version, by worker.
    self.sent = 0.0  # Bytes, of all workers and servers.
    self.used = 0  # Gradients that have reached a model.
    self.uses: list[Use] = []  # The engine empties it.
    self.spans: list[Span] = []  # The engine empties it.
    self._seconds, self._seed = cluster.seconds, seed
    self._exchange = 0.0  # Seconds before each step.
    if injected:
      self._exchange = self.network.seconds(Collective('exchange', injected))

  @property
  def step(self) -> int:
    """The step of the learning rate's schedule, the same for all workers.

    As in lockstep, it advances with every N gradients that reach a model, from
    any workers.
    """
    return self.used // self.workers

  def start(self, worker: Callable[[int], Process]) -> None:
    """Starts the process `worker(index)` of each worker."""
    for i in range(self.workers):
      self.env.process(worker(i))

  def draws(self, *words: int) -> list[int]:
    """Returns 64 random bits per worker, a function of seed and words."""
    workers = np.arange(self.workers)
    return draws.bits(self._seed, _STREAM, *words, workers).tolist()

  def compute(self, worker: int, model: Model) -> Process:
    """Computes a worker's next gradient; returns a `Gradient`."""
    step = self.steps[worker]
    self.steps[worker] += 1
    self.versions[worker] = model.version
    if self._exchange:
      arrived = self.env.timeout(self._exchange)
      yield from self.hold(worker, arrived, 'communicate')
    began = self.env.now
    value = self.algebra.gradient(model.value, worker, step)
    ended = self.env.timeout(self._seconds(worker, step))
    yield from self.hold(worker, ended, 'compute')
    return Gradient(value, worker, step, model.version, began)

  def local_step(self, worker: int, model: Model) -> Process:
    """Takes a worker's next step; returns its `Gradient` and its new model."""
    gradient = yield from self.compute(worker, model)
    value = self.algebra.update(model.value, gradient.value, self.step)
    value = self.algebra.with_statistics(value, [gradient.value])
    return gradient, Model(value, model.version + 1)

  def wait_until(
    self,
    worker: int,
    condition: Callable[[], bool],
    signal: Signal,
    kind: str = 'wait',
  ) -> Process:
    """Lets a worker wait until a condition holds.

    The signal fires whenever the condition may have changed. `kind` is the kind
    of the `Span`.
    """
    with self._span(worker, kind):
      while not condition():
        yield signal.next

  def hold(
    self, worker: int, event: simpy.Event, kind: str = 'wait'
  ) -> Process:
    """Lets a worker wait for an event, such as its turn at a resource."""
    with self._span(worker, kind):
      yield event

  def seconds_of(self, kind: str, members: int) -> float:
    """Returns the seconds of a collective on the model, and counts its bytes.

    Call it once for all members. For its kinds see `sync.traffic`.
    """
    collective = Collective(kind, self.nbytes)
    self.sent += members * collective.sent(members)
    return self.network._replace(workers=members).seconds(collective)

  def message(self, worker: int, link: simpy.Resource) -> Process:
    """Sends a message to or from a worker through a link; the worker waits."""
    with self._span(worker, 'communicate'):
      yield from self.transfer(link)

  def transfer(self, link: simpy.Resource) -> Process:
    """Sends a message through a shared link, while the worker computes."""
    seconds = 8 * self.nbytes / self.network.bandwidth
    self.sent += self.nbytes
    if seconds:
      with link.request() as turn:
        yield turn
        yield self.env.timeout(seconds)
    if self.network.latency:
      yield self.env.timeout(self.network.latency)

  def use(self, gradient: Gradient, version: int) -> None:
    """Records that a gradient reaches the model at a version."""
    _, worker, step, old, began = gradient
    metrics = self.algebra.metrics(gradient.value)
    use = Use(
      worker, step, began, self.env.now, version - old, metrics, self.sent
    )
    self.uses.append(use)
    self.used += 1

  @contextlib.contextmanager
  def _span(self, worker: int, kind: str) -> Generator[None]:
    began = self.env.now
    yield
    if self.env.now > began:
      version = self.versions[worker]
      self.spans.append(Span(worker, kind, began, self.env.now, version))


Models = Callable[[], Sequence[Model]]
"""Returns the models whose mean is the result of training: the server's, or one
per worker."""

Asynchronous = Callable[[Simulation], Models]
"""Starts the processes of an asynchronous method."""
