"""A custom training loop on islands: separate programs, on any hosts.

  selsync meet --islands=2 --host=10.0.0.1    # Prints the invitation.
  SELSYNC_INVITATION=... python island.py maui    # On each, with its own name.

Run the first line in a terminal of its own, best on a third host: without it,
the islands end. For several GPUs, place parameters and batches on a mesh.

The invitation is a secret. Keep it off the command line, which other users of
the host can read.
"""

import os
import sys

import jax
import jax.numpy as jnp
import optax

import selsync_jax as ss

STEPS = 60


def loss(params, x, y):
  """Returns the mean squared error of a small network."""
  return jnp.mean((jnp.tanh(x @ params['w']) @ params['v'] - y) ** 2)


@jax.jit
def local_step(params, opt_state, x, y):
  """Takes an optimizer step on this island, and returns its gradients, too."""
  value, grads = jax.value_and_grad(loss)(params, x, y)
  updates, opt_state = tx.update(grads, opt_state, params)
  return optax.apply_updates(params, updates), opt_state, grads, value


invitation, name = os.environ['SELSYNC_INVITATION'], sys.argv[1]
tx = optax.adam(0.02)
params = {  # The same seed everywhere.
  'w': jax.random.normal(jax.random.key(0), (5, 16)),
  'v': jnp.zeros(16),
}
opt_state = tx.init(params)

# An average is sent during the 5 steps after its synchronization, then applied.
strategy = ss.Strategy(
  ss.budgeted(ss.selsync(delta=0.3), lssr=0.9),
  ss.delayed(ss.mean(wire=ss.wires.int8()), 5, keep=0.5, extrapolate=0.5),
)
data = jax.random.key(1)
with ss.Island.join(invitation, name, params, strategy) as island:
  for step in range(STEPS):
    key = jax.random.fold_in(data, step * island.size + island.index)
    x = jax.random.normal(key, (32, 5))
    y = jnp.sin(x.sum(-1))
    params, opt_state, grads, value = local_step(params, opt_state, x, y)
    params = island.after_step(params, grads)
    if step % 20 == 19:
      print(f'{name}: step {step + 1}, loss {value:.4f}', flush=True)
  params = island.leave(params)
print(f'{name}: done', float(params['v'].sum()), flush=True)
