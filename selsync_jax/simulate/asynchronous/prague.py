"""Prague: a worker averages with the group that a generator gives it.

After its local update a worker asks the group generator for a group. If the
worker's buffer has one, that is the answer. Otherwise the generator divides all
workers with an empty buffer into random groups, and puts each group into its
members' buffers. A worker is in one group at a time, so groups never compete.
With the slowdown filter a division leaves out workers that are far behind the
worker that asked; they get a group when they ask themselves.

The paper could not be read. The default size and threshold are ours. The
paper's static schedule, of groups within nodes and between them, is left out,
because this cluster has no nodes.

References:
  Luo et al., `Prague: High-Performance Heterogeneity-Aware Asynchronous
  Decentralized Training`, ASPLOS 2020, preprint `Ripples` (arXiv 1909.07973);
  from the abstract and from memory.
"""

import functools
from typing import Annotated

from annotated_types import Ge
import simpy

from selsync_jax.config import Threshold
from selsync_jax.simulate.meeting import average, Meeting
from selsync_jax.simulate.simulation import Model, Models, Simulation

_ORDER = 4  # Separates these draws from other methods'.


def prague(
  sim: Simulation,
  *,
  group_size: Annotated[int, Ge(2)] = 3,
  slowdown: Threshold = 4.0,
) -> Models:
  """Averages a worker's model with a group after its local update.

  Args:
    group_size: the number of workers in a group.
    slowdown: C_thres of the slowdown filter, in steps behind the worker that
      asks; infinity means no filter.
  """
  models = [Model(sim.algebra.initial(), 0)] * sim.workers
  buffers: dict[int, Meeting] = {}  # By worker, its group.
  requests = simpy.Store(sim.env)

  def end(members):
    average(sim, models, members)
    for i in members:
      del buffers[i]

  def divide(order):
    for first in range(0, len(order), group_size):
      members = order[first : first + group_size]
      act = functools.partial(end, members)
      buffers.update(dict.fromkeys(members, Meeting(sim, len(members), act)))

  def generator():
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
        divide(sorted(idle, key=draws.__getitem__))
      answer.succeed(buffers[worker])

  def worker(i):
    while True:
      x, t = models[i]
      gradient = yield from sim.compute(i, models[i])
      x = sim.algebra.update(x, gradient.value, sim.step)
      sim.use(gradient, t)
      x = sim.algebra.with_statistics(x, [gradient.value])
      models[i] = Model(x, t + 1)
      answer = sim.env.event()
      requests.put((i, answer))
      group = yield answer
      yield from group.attend(i)

  sim.env.process(generator())
  sim.start(worker)
  return lambda: models
