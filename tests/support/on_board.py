"""Functions of islands that are threads of a test."""

from concurrent import futures

import jax
import numpy as np

from selsync_jax.islands.board import Board


def on_board(run, islands, *stacked):
  """The stacked results of `run(peers, *args)` on all islands.

  Args:
    run: a function made by `cut`, or a function that calls one.
    islands: N, the number of islands.
    *stacked: the arguments of all islands, [N, ...].
  """
  board = Board(islands)

  def island(i):
    args = jax.tree.map(lambda x: x[i], stacked)
    return jax.device_get(run(board.peers(i), *args))

  with futures.ThreadPoolExecutor(islands) as pool:
    results = list(pool.map(island, range(islands)))
  return jax.tree.map(lambda *x: np.stack(x), *results)
