"""Prague: a worker averages with the group that a generator gives it.

After its local update a worker asks the group generator for a group. If the
worker's buffer has one, that is the answer. Otherwise the generator divides all
workers with an empty buffer into random groups, and puts each group into its
members' buffers. A worker is in one group at a time, so groups never compete.
With the slowdown filter a division leaves out workers that are far behind the
one that asked; they get a group when they ask themselves.

Reconstructed from the abstract and from memory; the paper could not be read.
The default size and threshold and the static schedule are ours. The intra-node
and inter-node groups of the paper's schedule need nodes, which this cluster
does not have.

References:
  Luo et al., `Prague: High-Performance Heterogeneity-Aware Asynchronous
  Decentralized Training`, ASPLOS 2020.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Annotated, Literal

from annotated_types import Ge
import simpy

from selsync_jax.config import Threshold
from selsync_jax.simulate.meeting import average
from selsync_jax.simulate.meeting import Meeting
from selsync_jax.simulate.simulation import Method
from selsync_jax.simulate.simulation import Model
from selsync_jax.simulate.simulation import Models
from selsync_jax.simulate.simulation import Process
from selsync_jax.simulate.simulation import Simulation

_ORDER = 4  # Separates these draws from other methods'.

Create = Callable[[Sequence[int]], Meeting]
"""Makes the all-reduce of some workers' models."""


def _divide(order: Sequence[int], size: int) -> list[Sequence[int]]:
  return [order[k : k + size] for k in range(0, len(order), size)]


class StaticGroups:
  """Groups by a schedule: blocks of a ring that moves on at each step.

  Args:
    sim: the simulation.
    size: the number of workers in a group.
    slowdown: not used; a schedule ignores speeds.
    create: a function that makes a group.
  """

  def __init__(
    self, sim: Simulation, size: int, slowdown: float, create: Create
  ):
    del slowdown
    self._sim, self._size, self._create = sim, size, create
    self._steps: dict[int, dict[int, Meeting]] = {}

  def request(self, worker: int) -> Process:
    """Returns the worker's group of this step."""
    yield from ()
    step, workers = self._sim.steps[worker], self._sim.workers
    if step not in self._steps:
      shift = step * max(1, self._size // 2)
      order = [(i + shift) % workers for i in range(workers)]
      self._steps[step] = {
        i: meeting
        for members in _divide(order, self._size)
        for meeting in [self._create(members)]
        for i in members
      }
    return self._steps[step][worker]


class GroupGenerator:
  """Random groups, by global division.

  Args:
    sim: the simulation.
    size: the number of workers in a group.
    slowdown: how many steps a worker may be behind the one that asked and still
      be in the division.
    create: a function that makes a group.

  Attributes:
    buffers: each worker's group, or `None`.
  """

  def __init__(
    self, sim: Simulation, size: int, slowdown: float, create: Create
  ):
    self._sim, self._size, self._slowdown = sim, size, slowdown
    self._create = create
    self.buffers: list[Meeting | None] = [None] * sim.workers
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
      if self.buffers[worker] is None:
        self._divide(worker)
      answer.succeed(self.buffers[worker])

  def _divide(self, worker: int) -> None:
    progress = self._sim.steps
    idle = [
      i
      for i, group in enumerate(self.buffers)
      if group is None and progress[i] >= progress[worker] - self._slowdown
    ]
    self._divisions += 1
    draws = self._sim.draws(_ORDER, self._divisions)
    order = sorted(idle, key=draws.__getitem__)
    for members in _divide(order, self._size):
      group = self._create(members)
      for i in members:
        self.buffers[i] = group

  def leave(self, members: Sequence[int]) -> None:
    """Empties the buffers of a group that has ended."""
    for i in members:
      self.buffers[i] = None


GENERATORS = {'random': GroupGenerator, 'static': StaticGroups}


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

  def start(sim: Simulation) -> Models:
    models = [Model(sim.algebra.initial(), 0)] * sim.workers

    def reduce(members):
      average(sim, models, members)
      if isinstance(generator, GroupGenerator):
        generator.leave(members)

    def create(members):
      act = functools.partial(reduce, members)
      return Meeting(sim, len(members), act)

    generator = GENERATORS[how](sim, group_size, slowdown, create)

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
