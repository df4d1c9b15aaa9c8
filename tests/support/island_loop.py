"""A training loop of three islands."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

N, STEPS = 3, 14
RNG = np.random.default_rng(0)
X = RNG.normal(size=(STEPS, N, 8, 5)).astype(np.float32)
Y = np.tanh(X @ RNG.normal(size=5)).astype(np.float32)
TX = optax.adam(0.05)
START = {'w': jnp.ones((5, 4)), 'v': jnp.zeros(4)}


def loss(params, x, y):
  return jnp.mean((jnp.tanh(x @ params['w']) @ params['v'] - y) ** 2)


@jax.jit
def local_step(params, opt_state, x, y):
  grads = jax.grad(loss)(params, x, y)
  updates, opt_state = TX.update(grads, opt_state, params)
  return optax.apply_updates(params, updates), opt_state, grads
