"""An island that saves itself and comes back: `INVITATION NAME FOLDER STEPS`.

It adds `STEP WHOLE PARAMETERS` to `FOLDER/NAME.log` when it has begun and after
each step, with checksums of everything that it has, and of its parameters.
"""

import os
import pathlib
import sys
import time
import zlib

from flax import nnx, serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax

import selsync_jax as ss

EVERY = 30
"""Steps from one checkpoint to the next."""


class Net(nnx.Module):
  def __init__(self, rngs):
    self.hidden = nnx.Linear(5, 16, rngs=rngs)
    self.out = nnx.Linear(16, 1, rngs=rngs)

  def __call__(self, x):
    return self.out(jnp.tanh(self.hidden(x)))[:, 0]


@nnx.jit
def local_step(model, optimizer, x):
  def loss(model):
    return jnp.mean((model(x) - jnp.sin(x.sum(-1))) ** 2)

  grads = nnx.grad(loss)(model)
  optimizer.update(model, grads)
  return grads


def digest(*trees):
  arrays = map(np.asarray, jax.tree.leaves(trees))
  return zlib.crc32(b''.join(array.tobytes() for array in arrays))


def whole():
  return nnx.state(optimizer)


def save():
  return serialization.to_bytes(jax.tree.leaves(whole()))


def load(params, content):
  leaves, structure = jax.tree.flatten(whole())
  nnx.update(model, params)
  found = serialization.from_bytes(leaves, content)
  nnx.update(optimizer, structure.unflatten(found))


def tell(step, state=()):
  own = nnx.state(model)
  with path.with_suffix('.log').open('a') as log:
    log.write(f'{step} {digest(own, whole(), state)} {digest(own)}\n')


invitation, name, folder, steps = sys.argv[1:]
path = pathlib.Path(folder, name)
model = Net(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)
strategy = ss.Strategy(
  ss.budgeted(ss.selsync(0.3), lssr=0.8),
  ss.delayed(
    ss.outer(
      optax.sgd(0.7, 0.9, nesterov=True),
      averager=ss.mean(wire=ss.wires.int4()),
    ),
    3,
    keep=0.0,
  ),
)
state = None
if path.exists():
  found = serialization.msgpack_restore(path.read_bytes())
  leaves, structure = jax.tree.flatten(nnx.state(model, nnx.Param))
  params = serialization.from_state_dict(leaves, found['0'])
  load(structure.unflatten(params), found['1'])
  state = found['2']
params = nnx.state(model, nnx.Param)
with ss.Island.join(
  invitation, name, params, strategy, state=state, save=save, load=load
) as island:
  tell('begins')
  tell(island.step, island.state())
  while island.step < int(steps):
    key = [island.step, island.index]
    x = np.random.default_rng(key).normal(size=(8, 5)).astype(np.float32)
    grads = local_step(model, optimizer, x)
    params = nnx.state(model, nnx.Param)
    nnx.update(model, island.after_step(params, grads))
    tell(island.step, island.state())
    if island.step % EVERY == 0:
      own = jax.tree.leaves(nnx.state(model, nnx.Param)), save(), island.state()
      path.with_suffix('.new').write_bytes(serialization.to_bytes(own))
      path.with_suffix('.new').replace(path)
    time.sleep(float(os.environ.get('STEP_PAUSE', 0)))
  nnx.update(model, island.leave(nnx.state(model, nnx.Param)))
tell('ends')
