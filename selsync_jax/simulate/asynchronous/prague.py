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

from collections.abc import Callable, Sequence
import functools
from typing import Annotated, Any, Literal

from annotated_types import Ge
import simpy

from selsync_jax.config import Threshold
from selsync_jax.simulate.meeting import average, Meeting, shared_by
from selsync_jax.simulate.simulation import Model, Models, Process, Simulation

_ORDER = 4  # Separates these draws from other methods'.


Divide = Callable[[Sequence[int], Callable[[int], Any]], dict[int, Meeting]]
"""`divide(order, leave)`: divides workers into groups of neighbors in an order,
and returns the group of each. At its end a group averages its models, and then
calls `leave` with each of its members."""

Request = Callable[[int], Process]
"""`request(worker)`: asks for the worker's group, and returns it."""


def static_groups(sim: Simulation, size: int, divide: Divide) -> Request:
  """Groups by a schedule: blocks of a ring that moves on at each step."""

  def divided(step):
    shift = step * max(1, size // 2)
    order = [(i + shift) % sim.workers for i in range(sim.workers)]
    return divide(order, lambda member: None)

  groups = shared_by(sim.workers, divided)

  def request(worker):
    yield from ()
    return groups(sim.steps[worker])[worker]

  return request


def random_groups(sim: Simulation, slowdown: float, divide: Divide) -> Request:
  """Starts the group generator, which divides all idle workers at random.

  A worker may be `slowdown` steps behind the one that asked and still be in the
  division.
  """
  buffers: dict[int, Meeting] = {}  # By worker, its group.
  requests = simpy.Store(sim.env)

  def serve():
    divisions = 0
    while True:
      worker, answer = yield requests.get()
      if worker not in buffers:
        least = sim.steps[worker] - slowdown
        idle = [
          i
          for i, steps in enumerate(sim.steps)
          if i not in buffers and steps >= least
        ]
        divisions += 1
        draws = sim.draws(_ORDER, divisions)
        order = sorted(idle, key=draws.__getitem__)
        buffers.update(divide(order, buffers.pop))
      answer.succeed(buffers[worker])

  def request(worker):
    answer = sim.env.event()
    requests.put((worker, answer))
    return (yield answer)

  sim.env.process(serve())
  return request


def prague(
  sim: Simulation,
  *,
  group_size: Annotated[int, Ge(2)] = 3,
  how: Literal['random', 'static'] = 'random',
  slowdown: Threshold = 4.0,
) -> Models:
  """Averages a worker's model with a group after its local update.

  Args:
    group_size: the number of workers in a group.
    how: `random`, by the group generator; `static`, by a schedule.
    slowdown: C_thres of the slowdown filter, in steps behind the worker that
      asks; infinite is no filter.
  """
  models = [Model(sim.algebra.initial(), 0)] * sim.workers

  def divide(order, leave):
    def end(members):
      average(sim, models, members)
      for i in members:
        leave(i)

    groups = {}
    for first in range(0, len(order), group_size):
      members = order[first : first + group_size]
      act = functools.partial(end, members)
      groups |= dict.fromkeys(members, Meeting(sim, len(members), act))
    return groups

  if how == 'random':
    request = random_groups(sim, slowdown, divide)
  else:
    request = static_groups(sim, group_size, divide)

  def worker(i):
    while True:
      x, t = models[i]
      gradient = yield from sim.compute(i, models[i])
      x = sim.algebra.update(x, gradient.value, sim.step)
      sim.use(gradient, t)
      x = sim.algebra.with_statistics(x, [gradient.value])
      models[i] = Model(x, t + 1)
      group = yield from request(i)
      yield from group.attend(i)

  sim.start(worker)
  return lambda: models
