"""Workers that wait for each other and then all-reduce their models."""

from collections.abc import Callable, Hashable, Sequence
import functools
from typing import TypeVar

from selsync_jax.simulate.simulation import Model, Process, Signal, Simulation

K = TypeVar('K', bound=Hashable)
T = TypeVar('T')


class Meeting:
  """An all-reduce that begins when the last of its `members` has arrived.

  `act` is called once, when it ends.
  """

  def __init__(self, sim: Simulation, members: int, act: Callable[[], None]):
    self._sim, self._members, self._act = sim, members, act
    self._present, self._ended = 0, False
    self._began, self._done = Signal(sim.env), Signal(sim.env)

  def attend(self, worker: int) -> Process:
    """Lets a member wait for the others, and then for the end."""
    sim = self._sim
    self._present += 1
    if self._present == self._members:
      sim.env.process(self._reduce())
    yield from sim.wait_until(
      worker, lambda: self._present == self._members, self._began
    )
    yield from sim.wait_until(
      worker, lambda: self._ended, self._done, 'communicate'
    )

  def _reduce(self) -> Process:
    self._began.fire()
    seconds = self._sim.seconds_of('all_reduce', self._members)
    yield self._sim.env.timeout(seconds)
    self._act()
    self._ended = True
    self._done.fire()


def average(
  sim: Simulation, models: list[Model], members: Sequence[int]
) -> None:
  """Gives members the mean of their models; each keeps its optimizer's state.

  It replaces their entries of `models`, which has the models of all workers.
  """
  mean = sim.algebra.mean([models[i].value for i in members])
  for i in members:
    value = sim.algebra.with_shared(models[i].value, mean)
    models[i] = models[i]._replace(value=value)


def synchronizations(
  sim: Simulation, models: list[Model]
) -> Callable[[int], Meeting]:
  """Returns `meeting(step)`, in which all workers average their models."""
  act = functools.partial(average, sim, models, range(sim.workers))
  return shared_by(sim.workers, lambda step: Meeting(sim, sim.workers, act))


def shared_by(members: int, make: Callable[[K], T]) -> Callable[[K], T]:
  """Returns a function that shares the result of `make(key)` among members.

  Each member calls it once for a key. After the last call the result is
  dropped, so memory does not grow with the steps.
  """
  waiting: dict[K, tuple[T, int]] = {}

  def get(key):
    made, left = waiting.pop(key, None) or (make(key), members)
    if left > 1:
      waiting[key] = made, left - 1
    return made

  return get
