"""Averagers over several synchronizations."""

import jax
import jax.numpy as jnp
import numpy as np

from selsync_jax.devices import mappers


def run(averager, start, moves, mapper='vmap', every=1):
  """What each round leaves, and the averager's state, [rounds, workers, ...].

  Args:
    averager: of the rounds.
    start: where all workers start.
    moves: what each worker adds before each round, [rounds, workers, ...].
    mapper: see `mappers.choose`.
    every: optimizer steps in a round.
  """

  def worker(moves):
    def body(carry, move):
      tree, state, step = carry
      tree = jax.tree.map(jnp.add, tree, move)
      tree, state = averager.apply(tree, state)
      return (tree, state, step + every), (tree, state)

    carry = start, averager.init(start), jnp.int32(every)
    return jax.lax.scan(body, carry, moves)[1]

  moves = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), moves)
  chosen = mappers.choose(mapper, len(jax.tree.leaves(moves)[0]))
  results = jax.device_get(chosen.map_workers(worker)(moves))
  return jax.tree.map(lambda x: np.swapaxes(x, 0, 1), results)
