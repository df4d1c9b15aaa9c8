"""A custom training loop, in one process or several.

  python own_loop.py FOLDER
  selsync launch --processes=2 -- python own_loop.py FOLDER

The same command resumes from the last checkpoint, even with another number of
processes, if the number of devices is the same. Under Slurm: own_loop_slurm.sh.
A worker is a device. To make each of two hosts with four GPUs one worker, use
`ss.Layout(workers=2, data=4)`.
"""

import pathlib
import sys

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import selsync_jax as ss

trigger = ss.budgeted(ss.selsync(delta=0.3), lssr=0.9)
tx = optax.chain(trigger, optax.adam(1e-2))


def init(worker):
  """Returns the state of one worker; parameters start equal on all workers."""
  del worker
  w = jax.random.normal(jax.random.key(0), (5, 16))
  params = {'w': w, 'v': jnp.zeros(16)}
  return params, tx.init(params)


def step(state, batch):
  """Takes a step of one worker."""

  def loss(params):
    params = ss.in_use(params)
    y = jnp.tanh(batch['x'] @ params['w']) @ params['v']
    return jnp.mean((y - batch['y']) ** 2)

  params, opt_state = state
  value, grads = jax.value_and_grad(loss)(params)
  updates, opt_state = tx.update(grads, opt_state, params)
  params = optax.apply_updates(params, updates)
  sync = ss.decision(opt_state)
  params = ss.synchronize(sync, params)
  return (params, opt_state), {'loss': value, 'sync': sync}


def rows(i, workers):
  """Returns the batches of these workers, [workers, examples, ...]."""
  rngs = [np.random.default_rng((i, worker)) for worker in workers]
  x = np.stack([rng.normal(size=(8, 5)) for rng in rngs]).astype(np.float32)
  return {'x': x, 'y': np.sin(x.sum(-1))}


def main(folder, steps=500):
  """Trains for a number of steps, or until a signal arrives."""
  with (
    ss.join() as cluster,
    ocp.CheckpointManager(pathlib.Path(folder).absolute()) as checkpoints,
  ):
    layout = ss.Layout(workers=jax.device_count())
    train = layout.map_workers(step, donate=(0,))
    state, last = layout.create(init), checkpoints.latest_step() or 0
    if last:
      saved = ocp.args.StandardRestore(state)
      state = checkpoints.restore(last, args=saved)
    for i in range(last + 1, steps + 1):
      state, metrics = train(state, rows(i, layout.local))
      if i % 10 == 0:  # Many waiting steps can deadlock on CPUs.
        jax.block_until_ready(metrics)
      if i % 100 == 0:
        values = multihost_utils.process_allgather(metrics, tiled=True)
        loss, sync = values['loss'].mean(), bool(values['sync'][0])
        if cluster.process == 0:
          print(f'step {i}: loss {loss:.4f}, synchronized: {sync}', flush=True)
      stops = cluster.stops_after(i)
      if stops or i % 250 == 0 or i == steps:
        saved = ocp.args.StandardSave(state)
        checkpoints.save(i, args=saved, force=True)
      if stops:
        sys.exit(75)  # The checkpoint is complete when the contexts end.


if __name__ == '__main__':
  main(sys.argv[1], *map(int, sys.argv[2:]))
