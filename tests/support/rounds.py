"""Averagers over several synchronizations, and an outer step in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from selsync_jax.devices import layout
from selsync_jax.sync.agreement import typed_as


def run(averager, start, moves, mapper='vmap', sync=None):
  """Values and averager's state after each step, [steps, workers, ...].

  Args:
    averager: the averager of the synchronizations.
    start: initial value of all workers.
    moves: each worker's change at each step, [steps, workers, ...].
    mapper: see `layout.choose`.
    sync: the steps that synchronize, [steps]; by default, all.
  """
  steps, workers = jax.tree.leaves(moves)[0].shape[:2]
  sync = np.ones(steps, bool) if sync is None else np.asarray(sync)

  def worker(moves):
    def body(carry, now):
      tree, state = carry
      move, sync = now
      tree = jax.tree.map(jnp.add, tree, move)
      carry = averager.step(sync, tree, state)
      return carry, carry

    own = jax.tree.map(typed_as, start, moves)  # A mesh's types need that.
    carry = own, averager.init(own)
    return jax.lax.scan(body, carry, (moves, sync))[1]

  moves = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), moves)
  chosen = layout.choose(mapper, workers)
  results = jax.device_get(chosen.map_workers(worker)(moves))
  return jax.tree.map(lambda x: np.swapaxes(x, 0, 1), results)


class Outer:
  """An outer step with Nesterov's momentum of 0.9, as DiLoCo takes it."""

  def __init__(self, start, rate=0.7):
    self.consensus, self.rate = start.astype(np.float64), rate
    self.momentum = np.zeros_like(self.consensus)

  def __call__(self, workers):
    """The workers' new parameters, from their own parameters [workers, ...]."""
    gradient = self.consensus - np.mean(workers, axis=0)
    self.momentum = gradient + 0.9 * self.momentum
    self.consensus = self.consensus - self.rate * (
      gradient + 0.9 * self.momentum
    )
    return self.consensus
