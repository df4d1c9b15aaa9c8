"""RNA, randomized non-blocking all-reduce: waits for one of two random workers.

Reconstructed from the abstract and from memory; the paper could not be read. In
each round a controller probes a few random workers, and the first of them that
is ready starts an all-reduce of all workers. Ready workers contribute the
gradients that they have accumulated, the others nothing. The mean is over
contributors, and the learning rate is scaled by their share. Ours, as the
abstract says nothing: accumulated gradients are added without weights, as in
eager-SGD; a worker that comes after its round has begun continues to compute,
and applies the results of all rounds that it missed, so the models stay equal.
The hierarchical mode, with groups of equal speed, is left out.

References:
  Yang, Rang and Cheng, `Mitigating Stragglers in the Decentralized Training on
  Heterogeneous Clusters`, Middleware 2020.
"""

import functools

from selsync_jax.config import Count
from selsync_jax.simulate.methods.partial import PartialAllReduce
from selsync_jax.simulate.methods.partial import train_with
from selsync_jax.simulate.simulation import Method
from selsync_jax.simulate.simulation import Model
from selsync_jax.simulate.simulation import Models
from selsync_jax.simulate.simulation import Simulation

_PROBED = 2  # Separates these draws from other methods'.


def rna(*, probes: Count = 2) -> Method:
  """Applies a partial all-reduce that the first of a few random workers begins.

  Args:
    probes: q, the number of workers that the controller probes in each round;
      the power of two choices says 2.
  """

  def start(sim: Simulation) -> Models:
    if probes > sim.workers:
      raise ValueError(f'probes={probes}: there are {sim.workers} workers')

    @functools.lru_cache
    def probed(number):
      draws = sim.draws(_PROBED, number)
      return sorted(range(sim.workers), key=draws.__getitem__)[:probes]

    def may_begin(number, worker):
      return worker in probed(number)

    newest = Model(sim.algebra.initial(), 0)  # All workers have the same model.

    def apply(model, results, step):
      nonlocal newest
      del model, step
      for mean, contributors, number in results:
        if number == newest.version:  # This worker is the first to apply it.
          share = contributors / sim.workers
          value = sim.algebra.update(newest.value, mean, number, share)
          newest = Model(value, number + 1)
      return newest.value

    reduction = PartialAllReduce(sim, may_begin, lambda givers: givers)
    return train_with(sim, reduction, apply, lambda g: g.version)

  return start
