"""An island whose devices share its parameters: `INVITATION NAME`.

It may be one or several processes. It prints its values at the end.
"""

import sys

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import optax

import selsync_jax as ss
from selsync_jax.islands import exchange, flight

LENGTH = WIDTH = 64
TX = optax.adam(0.02)

exchange.PIECE = flight.PIECE = 256  # So that messages have several.


def loss(params, x):
  out = jnp.tanh(x @ params['w']) @ params['v']
  return jnp.mean((out - jnp.sin(x.sum(-1))) ** 2)


@jax.jit
def local_step(params, opt_state, x):
  grads = jax.grad(loss)(params, x)
  updates, opt_state = TX.update(grads, opt_state, params)
  return optax.apply_updates(params, updates), opt_state, grads


def init():
  w = jax.random.normal(jax.random.key(0), (LENGTH, WIDTH)) / 8
  return {'w': w, 'v': jnp.ones(WIDTH) / 8}


with ss.join():
  mesh = Mesh(np.array(jax.devices()), ('devices',))
  split = NamedSharding(mesh, PartitionSpec('devices'))
  same = NamedSharding(mesh, PartitionSpec())
  params = jax.jit(init, out_shardings={'w': split, 'v': same})()
  opt_state = jax.jit(TX.init)(params)
  strategy = ss.Strategy(
    ss.budgeted(ss.selsync(0.3), lssr=0.8),
    ss.delayed(ss.mean(wire=ss.wires.int8()), 3, keep=0.5, extrapolate=0.5),
  )
  with ss.Island.join(*sys.argv[1:], params, strategy) as island:
    for step in range(40):
      data = np.random.default_rng([step, island.index])
      whole = data.normal(size=(32, LENGTH)).astype(np.float32)
      x = jax.make_array_from_callback(whole.shape, split, whole.__getitem__)
      params, opt_state, grads = local_step(params, opt_state, x)
      params = island.after_step(params, grads)
    params = island.leave(params)
  found = multihost_utils.process_allgather(params, tiled=True)
  assert not params['w'].is_fully_replicated
  has = (x.tobytes().hex() for x in jax.tree.leaves(found))
  print('has', *has, flush=True)
