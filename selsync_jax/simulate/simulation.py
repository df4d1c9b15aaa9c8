"""What the processes of a method live in: a clock, workers, links, a record.

A method starts one SimPy process per worker, and more where its paper has more
(a parameter server, a group generator). A process takes time by `compute`,
`message`, `communicate` (for the `seconds_of` a collective), `wait_until` and
`hold`, all of them generators for `yield from`. Times depend on the cluster and
the seed alone, never on an array.
"""

from collections.abc import Callable, Generator
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
  """A model as somebody has it.

  Attributes:
    value: of kind `model`.
    version: how many updates it has had, as the method counts them.
  """

  value: Value
  version: int


class Gradient(NamedTuple):
  """What a worker computed.

  Attributes:
    value: of kind `gradient`.
    worker: who computed it.
    step: the worker's own, from 0.
    version: of the model at which it was computed.
    began: when the computation began, in virtual seconds.
  """

  value: Value
  worker: int
  step: int
  version: int
  began: float


class Use(NamedTuple):
  """The record of a gradient that reached the model, without its arrays.

  Attributes:
    worker: who computed it.
    step: the worker's own, from 0.
    began: when the computation began, in virtual seconds.
    seconds: when it reached the model, in virtual seconds.
    staleness: updates of the model since the gradient's own version.
    metrics: of the gradient's batch, of kind `metrics`.
    sent: bytes that all workers and servers have sent until then.
  """

  worker: int
  step: int
  began: float
  seconds: float
  staleness: int
  metrics: Value
  sent: float


class Span(NamedTuple):
  """What a worker did for some time.

  Attributes:
    worker: who did it.
    kind: `compute`, `wait` or `communicate`.
    began: in virtual seconds.
    ended: in virtual seconds.
    version: of the worker's model.
  """

  worker: int
  kind: str
  began: float
  ended: float
  version: int


class Settled(simpy.Event):
  """An event after all others of the same instant."""

  LATE = EventPriority(NORMAL + 1)

  def __init__(self, env: simpy.Environment):
    super().__init__(env)
    self._ok, self._value = True, None
    env.schedule(self, priority=self.LATE)


class Signal:
  """Something that happens again and again, and that processes wait for."""

  def __init__(self, env: simpy.Environment):
    self._env, self.next = env, env.event()

  def fire(self) -> None:
    """Wakes everybody who waits for `next`."""
    fired, self.next = self.next, self._env.event()
    fired.succeed()


class Simulation:
  """A cluster that trains.

  Args:
    seconds: `seconds(worker, step)`, of a gradient's computation.
    network: between the workers.
    nbytes: of the parameters and batch statistics, what a message carries.
    algebra: of models and gradients.
    seed: of what methods draw.
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
    self.steps = [0] * self.workers  # Gradients that each worker began.
    self.versions = [0] * self.workers  # Of the models they have.
    self.sent = 0.0  # Bytes, by all workers and servers.
    self.uses: list[Use] = []  # Taken away by the engine.
    self.spans: list[Span] = []  # Taken away by the engine.
    self._seconds, self._seed = seconds, seed

  @property
  def now(self) -> float:
    """Virtual seconds since the start."""
    return self.env.now

  def process(self, process: Process) -> simpy.Process:
    """Starts a process."""
    return self.env.process(process)

  def signal(self) -> Signal:
    """A new signal."""
    return Signal(self.env)

  def settled(self) -> Settled:
    """An event after all others that happen now."""
    return Settled(self.env)

  def draws(self, *words: int) -> list[int]:
    """64 random bits per worker, from the seed and the words alone."""
    workers = np.arange(self.workers)
    return draws.bits(self._seed, _STREAM, *words, workers).tolist()

  def compute(self, worker: int, model: Model) -> Process:
    """A worker computes its next gradient; returns a `Gradient`."""
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
    """A worker waits until a condition holds, which may change at a signal.

    Args:
      worker: who.
      condition: what it waits for.
      signal: fires after the condition may have changed.
      kind: what the wait is called in the record, see `Span`.
    """
    began = self.now
    while not condition():
      yield signal.next
    self._note(worker, kind, began)

  def hold(self, worker: int, turn: simpy.Event) -> Process:
    """A worker waits for its turn at something."""
    began = self.now
    yield turn
    self._note(worker, 'wait', began)

  def communicate(self, worker: int, seconds: float) -> Process:
    """A worker communicates for some time."""
    began = self.now
    yield self.env.timeout(seconds)
    self._note(worker, 'communicate', began)

  def seconds_of(self, kind: str, members: int) -> float:
    """Seconds of a collective on the model, whose bytes it counts.

    Called once for all members.

    Args:
      kind: of the collective, see `sync.traffic`.
      members: how many workers take part.
    """
    collective = Collective(kind, self.nbytes)
    self.sent += members * collective.sent(members)
    return self.network._replace(workers=members).seconds(collective)

  def message(
    self, worker: int, link: simpy.Resource, nbytes: float
  ) -> Process:
    """A message to or from a worker through a link that others share."""
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
    """Records that a gradient reaches a model of this version."""
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
