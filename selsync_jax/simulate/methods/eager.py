"""eager-SGD: gradients averaged by a partial all-reduce, late ones kept.

A late gradient stays in its worker's buffer and goes into a later round. A
worker that comes too late for several rounds sees only the last one's result,
so the models drift apart and are synchronized periodically.

Where the paper says nothing: a worker applies a result once, even if it takes
several steps before the next result. It joins round t with its t-th gradient,
so `majority` waits for a worker that is always slow.

References:
  Li et al., `Taming Unbalanced Training Workloads in Deep Learning with Partial
  Collective Operations`, PPoPP 2020, Algorithm 2.
"""

import functools
from typing import Literal

from selsync_jax.config import Count
from selsync_jax.simulate.methods.partial import PartialAllReduce
from selsync_jax.simulate.methods.partial import train_with
from selsync_jax.simulate.simulation import Method
from selsync_jax.simulate.simulation import Models
from selsync_jax.simulate.simulation import Simulation

_INITIATOR = 1  # Separates these draws from other methods'.


def eager(
  *, mode: Literal['solo', 'majority'] = 'solo', sync_every: Count = 100
) -> Method:
  """Applies, at each step, the sum of a partial all-reduce divided by N.

  Args:
    mode: the worker that begins a round: in `solo` the first that comes, in
      `majority` a random one, so that half of the workers have come on average.
    sync_every: steps of each worker from one synchronization of the models to
      the next; the paper's is 10 epochs.
  """

  def start(sim: Simulation) -> Models:
    @functools.lru_cache
    def drawn(number):
      draws = sim.draws(_INITIATOR, number)
      return draws.index(max(draws))

    def may_begin(number, worker):
      return mode == 'solo' or worker == drawn(number)

    def apply(model, results, step):
      for result in results[-1:]:  # Later rounds overwrite earlier ones.
        model = sim.algebra.update(model, result.mean, step)
      return model

    reduction = PartialAllReduce(sim, may_begin, lambda givers: sim.workers)
    return train_with(sim, reduction, apply, lambda g: g.step, sync_every)

  return start
