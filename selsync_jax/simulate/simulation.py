"""The simulation that runs a method: a clock, workers, links, and a record.

A method starts one SimPy process per worker, and more where its paper has more
(a parameter server, a group generator). A process takes time by `compute`,
`message`, `communicate` (for the `seconds_of` a collective), `wait_until` and
`hold`, all of them generators for `yield from`. Times depend on the cluster and
the seed alone, never on an array.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import simpy
from simpy.events import EventPriority
from simpy.events import NORMAL

from selsync_jax.data import draws
from selsync_jax.simulate.algebra import Algebra
from selsync_jax.simulate.values import Value
from selsync_jax.sync.network import Network
from selsync_jax.sync.traffic import Collective

_STREAM = 0x51  # Makes these draws independent of all others of a seed.

Process = Generator[simpy.Event, Any, Any]


class Model(NamedTuple):
  """A version of a model.

  Attributes:
    value: the model, a value of kind `model`.
    version: the number of updates it has had, as the method counts them.
  """

  value: Value
  version: int


class Gradient(NamedTuple):
  """The gradient of one worker's step.

  Attributes:
    value: the gradient, a value of kind `gradient`.
    worker: the index of the worker that computed it.
    step: the worker's own step, from 0.
    version: the version of the model at which it was computed.
    began: the virtual time at which the computation began, in seconds.
  """

  value: Value
  worker: int
  step: int
  version: int
  began: float


class Use(NamedTuple):
  """The record of a gradient that reached the model, without its arrays.

  Attributes:
    worker: the index of the worker that computed it.
    step: the worker's own step, from 0.
    began: the virtual time at which the computation began, in seconds.
    seconds: the virtual time at which the gradient reached the model.
    staleness: the number of updates of the model since the gradient's version.
    metrics: the metrics of its batch, a value of kind `metrics`.
    sent: the bytes that all workers and servers had sent by then.
  """

  worker: int
  step: int
  began: float
  seconds: float
  staleness: int
  metrics: Value
  sent: float


class Span(NamedTuple):
  """An interval in which a worker did one thing.

  Attributes:
    worker: the worker's index.
    kind: `compute`, `wait` or `communicate`.
    began: the begin, in virtual seconds.
    ended: the end, in virtual seconds.
    version: the version of the worker's model.
  """

  worker: int
  kind: str
  began: float
  ended: float
  version: int


class Settled(simpy.Event):
  """An event that comes after all others of the same instant."""

  LATE = EventPriority(NORMAL + 1)

  def __init__(self, env: simpy.Environment):
    super().__init__(env)
    self._ok, self._value = True, None
    env.schedule(self, priority=self.LATE)


class Signal:
  """An event that repeats, and that processes wait for."""

  def __init__(self, env: simpy.Environment):
    self._env, self.next = env, env.event()

  def fire(self) -> None:
    """Wakes every process that waits for `next`."""
    fired, self.next = self.next, self._env.event()
    fired.succeed()


class Simulation:
  """A cluster that trains on a virtual clock.

  Args:
    seconds: `seconds(worker, step)`, the time to compute a gradient.
    network: the network between the workers.
    nbytes: the size of a message: parameters and batch statistics, in bytes.
    algebra: the operations on models and gradients.
    seed: the seed of the methods' draws.
  """

  def __init__(
    self,
    seconds: Callable[[int, int], float],
    network: Network,
    nbytes: float,
    algebra: Algebra,
    seed: int = 0,
  ):
    self.env = simpy.Environment()
    self.algebra, self.network, self.nbytes = algebra, network, nbytes
    self.workers = network.workers
    self.steps = [0] * self.workers  # Gradients begun, by worker.
    self.versions = [0] * self.workers  # The model's version, by worker.
    self.sent = 0.0  # Bytes, of all workers and servers.
    self.uses: list[Use] = []  # The engine empties it.
    self.spans: list[Span] = []  # The engine empties it.
    self._seconds, self._seed = seconds, seed

  @property
  def now(self) -> float:
    """Virtual seconds since the start."""
    return self.env.now

  def process(self, process: Process) -> simpy.Process:
    """Starts a process."""
    return self.env.process(process)

  def start(self, worker: Callable[[int], Process]) -> None:
    """Starts the process `worker(index)` of each worker."""
    for i in range(self.workers):
      self.process(worker(i))

  def signal(self) -> Signal:
    """Returns a new signal."""
    return Signal(self.env)

  def settled(self) -> Settled:
    """Returns an event that comes after all others of this instant."""
    return Settled(self.env)

  def draws(self, *words: int) -> list[int]:
    """Returns 64 random bits per worker, a function of seed and words."""
    workers = np.arange(self.workers)
    return draws.bits(self._seed, _STREAM, *words, workers).tolist()

  def compute(self, worker: int, model: Model) -> Process:
    """Computes a worker's next gradient; returns a `Gradient`."""
    step, began = self.steps[worker], self.now
    self.steps[worker] += 1
    self.versions[worker] = model.version
    value = self.algebra.gradient(model.value, worker, step)
    yield self.env.timeout(self._seconds(worker, step))
    self._note(worker, 'compute', began)
    return Gradient(value, worker, step, model.version, began)

  def wait_until(
    self,
    worker: int,
    condition: Callable[[], bool],
    signal: Signal,
    kind: str = 'wait',
  ) -> Process:
    """Lets a worker wait until a condition holds.

    Args:
      worker: the worker's index.
      condition: the condition.
      signal: a signal that fires whenever the condition may have changed.
      kind: the kind of the recorded `Span`.
    """
    began = self.now
    while not condition():
      yield signal.next
    self._note(worker, kind, began)

  def hold(self, worker: int, turn: simpy.Event) -> Process:
    """Lets a worker wait for its turn at a resource."""
    began = self.now
    yield turn
    self._note(worker, 'wait', began)

  def communicate(self, worker: int, seconds: float) -> Process:
    """Lets a worker communicate for some seconds."""
    began = self.now
    yield self.env.timeout(seconds)
    self._note(worker, 'communicate', began)

  def seconds_of(self, kind: str, members: int) -> float:
    """Returns the seconds of a collective on the model, and counts its bytes.

    Call it once for all members.

    Args:
      kind: the kind of collective, see `sync.traffic`.
      members: the number of workers that take part.
    """
    collective = Collective(kind, self.nbytes)
    self.sent += members * collective.sent(members)
    return self.network._replace(workers=members).seconds(collective)

  def message(
    self, worker: int, link: simpy.Resource, nbytes: float
  ) -> Process:
    """Sends a message to or from a worker through a shared link."""
    began = self.now
    seconds = 8 * nbytes / self.network.bandwidth
    self.sent += nbytes
    if seconds:
      with link.request() as turn:
        yield turn
        yield self.env.timeout(seconds)
    if self.network.latency:
      yield self.env.timeout(self.network.latency)
    self._note(worker, 'communicate', began)

  def use(self, gradient: Gradient, version: int) -> None:
    """Records that a gradient reaches the model at a version."""
    self.uses.append(
      Use(
        gradient.worker,
        gradient.step,
        gradient.began,
        seconds=self.now,
        staleness=version - gradient.version,
        metrics=self.algebra.metrics(gradient.value),
        sent=self.sent,
      )
    )

  def _note(self, worker: int, kind: str, began: float) -> None:
    if self.now > began:
      version = self.versions[worker]
      self.spans.append(Span(worker, kind, began, self.now, version))


Models = Callable[[], Sequence[Model]]
"""Returns the models whose mean is the result of training: the server's, or one
per worker."""

Method = Callable[[Simulation], Models]
"""Starts the processes of an asynchronous method."""
