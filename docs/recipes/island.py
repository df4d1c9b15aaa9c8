"""A custom training loop on islands: separate programs, on any hosts.

  selsync meet --islands=2 --minimum=1 --host=10.0.0.1  # Prints the invitation.
  SELSYNC_INVITATION=... python island.py maui FOLDER  # On each, with its name.

Run the first line in a terminal of its own, best on a third host: without it,
the islands end. For several GPUs, place parameters and batches on a mesh.

If an island ends, repeat its command: it continues from the others' state. If
all end, repeat all commands: they resume from their own files. This needs flax.

The invitation is a secret. Keep it off the command line, which other users of
the host can read.
"""

import os
import pathlib
import sys

from flax import serialization
import jax
import jax.numpy as jnp
import optax

import selsync_jax as ss

STEPS, SAVE_EVERY = 60, 20


def loss(params, x, y):
  """Returns the mean squared error of a small network."""
  return jnp.mean((jnp.tanh(x @ params['w']) @ params['v'] - y) ** 2)


@jax.jit
def local_step(params, opt_state, x, y):
  """Takes an optimizer step on this island, and returns its gradients, too."""
  value, grads = jax.value_and_grad(loss)(params, x, y)
  updates, opt_state = tx.update(grads, opt_state, params)
  return optax.apply_updates(params, updates), opt_state, grads, value


def batch(i):
  """Returns the batch with an index, the same in every program."""
  x = jax.random.normal(jax.random.fold_in(jax.random.key(1), i), (32, 5))
  return x, jnp.sin(x.sum(-1))


def save():
  """Returns what another island needs besides the parameters."""
  return serialization.to_bytes(opt_state)


def load(its_params, content):
  """Continues from another island's parameters, and the bytes it has saved."""
  global params, opt_state
  params = its_params
  opt_state = serialization.from_bytes(opt_state, content)


invitation, name = os.environ['SELSYNC_INVITATION'], sys.argv[1]
file = pathlib.Path(sys.argv[2], f'{name}.msgpack')
tx = optax.adam(0.02)
params = {  # The same seed everywhere.
  'w': jax.random.normal(jax.random.key(0), (5, 16)),
  'v': jnp.zeros(16),
}
opt_state, state = tx.init(params), None
local_step(params, opt_state, *batch(0))  # Compiles before others wait for it.
if file.exists():
  saved = serialization.msgpack_restore(file.read_bytes())
  params, opt_state = serialization.from_state_dict(
    (params, opt_state), saved['loop']
  )
  state = saved['island']

# An average is sent during the 5 steps after its synchronization, then applied.
strategy = ss.Strategy(
  ss.budgeted(ss.selsync(delta=0.3), lssr=0.9),
  ss.delayed(ss.mean(wire=ss.wires.int8()), 5, keep=0.5, extrapolate=0.5),
)
with ss.Island.join(
  invitation, name, params, strategy, state=state, save=save, load=load
) as island:
  for step in range(island.step, STEPS):
    x, y = batch(step * island.size + island.index)
    params, opt_state, grads, value = local_step(params, opt_state, x, y)
    params = island.after_step(params, grads)
    if island.step % SAVE_EVERY == 0:
      print(f'{name}: step {island.step}, loss {value:.4f}', flush=True)
      whole = {'loop': (params, opt_state), 'island': island.state()}
      file.with_suffix('.new').write_bytes(serialization.to_bytes(whole))
      file.with_suffix('.new').replace(file)
  params = island.leave(params)
print(f'{name}: done', float(params['v'].sum()), flush=True)
