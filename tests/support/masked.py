"""Islands on an emulated cluster whose first host is the coordinator.

  python -m tests.support.masked FOLDER

trains an island on a host, and prints a digest of its parameters. The first
host prints what the coordinator says. All hosts share the folder.
"""

import hashlib
import os
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import selsync_jax as ss
from tests.support.island_loop import local_step, START, TX, X, Y


def coordinate(islands: int, folder: pathlib.Path) -> list[str]:
  """Serves islands until all are done; returns what the coordinator said."""
  from selsync_jax.islands.server import CoordinatorServer

  said: list[str] = []
  with CoordinatorServer(islands, 'host0', say=said.append) as point:
    made = folder / 'made'
    made.write_text(str(point.invitation))
    made.rename(folder / 'invitation')  # Other hosts never see half a file.
    while len([*folder.glob('done*')]) < islands:
      time.sleep(0.1)
  return said


def invitation(folder: pathlib.Path) -> str:
  """Returns the invitation, as soon as the coordinator serves."""
  while not (folder / 'invitation').exists():
    time.sleep(0.1)
  return (folder / 'invitation').read_text()


def train(invited: str, name: str) -> str:
  """Trains an island; returns a digest of its parameters."""
  # Small arrays pass through the coordinator anyway.
  params, opt_state = START | {'large': jnp.ones(100_000)}, TX.init(START)
  strategy = ss.Strategy(ss.selsync(0.1), ss.mean())
  with ss.Island.join(invited, name, params, strategy) as island:
    for x, y in zip(X[:, island.index], Y[:, island.index], strict=True):
      small = {name: params[name] for name in START}
      small, opt_state, grads = local_step(small, opt_state, x, y)
      large = params['large'] * (1 + 0.1 * small['v'][0])
      grads |= {'large': 0 * large}
      params = island.after_step(small | {'large': large}, grads)
    params = island.leave(params)
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves(params):
    digest.update(np.asarray(leaf).tobytes())
  return digest.hexdigest()


def main() -> None:
  folder, index = pathlib.Path(sys.argv[1]), os.environ['JAX_PROCESS_ID']
  if index == '0':
    islands = int(os.environ['JAX_NUM_PROCESSES']) - 1
    print('\n'.join(coordinate(islands, folder)))
  else:
    print(train(invitation(folder), index))
    (folder / f'done{index}').touch()


if __name__ == '__main__':
  main()
