"""Averagers over several synchronizations."""

import jax
import jax.numpy as jnp
import numpy as np

from selsync_jax.devices import mappers
from selsync_jax.sync.agreement import typed_as


def run(averager, start, moves, mapper='vmap', sync=None):
  """What each step leaves, and the averager's state, [steps, workers, ...].

  Args:
    averager: what the workers do at a synchronization.
    start: where all workers start.
    moves: what each worker adds at each step, [steps, workers, ...].
    mapper: see `mappers.choose`.
    sync: at which steps they synchronize, [steps]; all without.
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

    own = jax.tree.map(typed_as, start, moves)  # On a mesh, types say that.
    carry = own, averager.init(own)
    return jax.lax.scan(body, carry, (moves, sync))[1]

  moves = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), moves)
  chosen = mappers.choose(mapper, workers)
  results = jax.device_get(chosen.map_workers(worker)(moves))
  return jax.tree.map(lambda x: np.swapaxes(x, 0, 1), results)
