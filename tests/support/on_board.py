"""Functions of islands that are threads of a test."""

from concurrent import futures

import jax
import numpy as np

from selsync_jax.islands.board import Board


def on_board(run, islands, *stacked):
  """What `run(peers, *args)` returns on each island, stacked.

  Args:
    run: a function that `cut` has made, or one that calls it.
    islands: N, their number.
    *stacked: the arguments of all islands, [N, ...].
  """
  board = Board(islands)

  def island(i):
    args = jax.tree.map(lambda x: x[i], stacked)
    return jax.device_get(run(board.peers(i), *args))

  with futures.ThreadPoolExecutor(islands) as pool:
    results = list(pool.map(island, range(islands)))
  return jax.tree.map(lambda *x: np.stack(x), *results)
