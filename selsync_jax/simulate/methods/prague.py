"""Prague: a worker averages with the group that a generator gives it.

After its local update a worker asks the group generator for a group. If the
worker's buffer has one, that is the answer. Otherwise the generator divides all
workers with an empty buffer into random groups, and puts each group into its
members' buffers. A worker is in one group at a time, so groups never compete.
With the slowdown filter a division leaves out workers that are far behind the
one that asked; they get a group when they ask themselves.

Reconstructed from the abstract and from memory; the paper could not be read.
The default size and threshold and the static schedule are ours. The paper's
schedule has intra-node and inter-node groups; this cluster has no nodes.

References:
  Luo et al., `Prague: High-Performance Heterogeneity-Aware Asynchronous
  Decentralized Training`, ASPLOS 2020.
"""

from collections.abc import Sequence
import functools
from typing import Annotated, Literal

from annotated_types import Ge
import simpy

from selsync_jax.config import Threshold
from selsync_jax.simulate.meeting import average
from selsync_jax.simulate.meeting import Meeting
from selsync_jax.simulate.simulation import Method
from selsync_jax.simulate.simulation import Model
from selsync_jax.simulate.simulation import Process
from selsync_jax.simulate.simulation import Simulation

_ORDER = 4  # Separates these draws from other methods'.


class StaticGroups:
  """Groups by a schedule: blocks of a ring that moves on at each step."""

  def __init__(self, sim: Simulation, models: list[Model], size: int):
    self._sim, self._models, self._size = sim, models, size
    self._steps: dict[int, dict[int, Meeting]] = {}

  def request(self, worker: int) -> Process:
    """Returns the worker's group of this step."""
    yield from ()
    step, workers = self._sim.steps[worker], self._sim.workers
    if step not in self._steps:
      shift = step * max(1, self._size // 2)
      order = [(i + shift) % workers for i in range(workers)]
      self._steps[step] = self._groups(order)
    return self._steps[step][worker]

  def _groups(self, order: Sequence[int]) -> dict[int, Meeting]:
    """Divides some workers, and returns the group of each."""
    groups = {}
    for start in range(0, len(order), self._size):
      members = order[start : start + self._size]
      end = functools.partial(self._end, members)
      groups |= dict.fromkeys(members, Meeting(self._sim, len(members), end))
    return groups

  def _end(self, members: Sequence[int]) -> None:
    average(self._sim, self._models, members)


class GroupGenerator(StaticGroups):
  """Random groups, by global division.

  A worker may be `slowdown` steps behind the one that asked and still be in the
  division.
  """

  def __init__(
    self, sim: Simulation, models: list[Model], size: int, slowdown: float
  ):
    super().__init__(sim, models, size)
    self._slowdown = slowdown
    self._buffers: dict[int, Meeting] = {}  # By worker, its group.
    self._requests = simpy.Store(sim.env)
    self._divisions = 0
    sim.process(self._serve())

  def request(self, worker: int) -> Process:
    """Asks the generator for the worker's group; returns it."""
    answer = self._sim.env.event()
    self._requests.put((worker, answer))
    return (yield answer)

  def _serve(self) -> Process:
    while True:
      worker, answer = yield self._requests.get()
      if worker not in self._buffers:
        self._divide(worker)
      answer.succeed(self._buffers[worker])

  def _divide(self, worker: int) -> None:
    least = self._sim.steps[worker] - self._slowdown
    idle = [
      i
      for i, steps in enumerate(self._sim.steps)
      if i not in self._buffers and steps >= least
    ]
    self._divisions += 1
    draws = self._sim.draws(_ORDER, self._divisions)
    self._buffers |= self._groups(sorted(idle, key=draws.__getitem__))

  def _end(self, members: Sequence[int]) -> None:
    super()._end(members)
    for i in members:
      del self._buffers[i]


def prague(
  *,
  group_size: Annotated[int, Ge(2)] = 3,
  how: Literal['random', 'static'] = 'random',
  slowdown: Threshold = 4.0,
) -> Method:
  """Averages a worker's model with a group after its local update.

  Args:
    group_size: the number of workers in a group.
    how: `random`, by the group generator; `static`, by a schedule.
    slowdown: C_thres of the slowdown filter, in steps behind the worker that
      asks; infinite is no filter.
  """

  def start(sim: Simulation):
    models = [Model(sim.algebra.initial(), 0)] * sim.workers

    if how == 'random':
      generator = GroupGenerator(sim, models, group_size, slowdown)
    else:
      generator = StaticGroups(sim, models, group_size)

    def worker(i):
      while True:
        x, t = models[i]
        gradient = yield from sim.compute(i, models[i])
        sim.use(gradient, t)
        x = sim.algebra.update(x, gradient.value, t)
        x = sim.algebra.with_statistics(x, [gradient.value])
        models[i] = Model(x, t + 1)
        group = yield from generator.request(i)
        yield from group.attend(i)

    sim.start(worker)
    return lambda: models

  return start
