"""A trigger over recorded gradients, and the paper's equation in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from selsync_jax.devices import mappers


def run(tx, grads, mapper='vmap'):
  """The state after each step, for grads [steps, workers, ...]."""

  def worker(grads):
    def step(state, grad):
      state = tx.update(grad, state)[1]
      return state, state

    return jax.lax.scan(step, tx.init(grads[0]), grads)[1]

  chosen = mappers.choose(mapper, grads.shape[1])
  states = chosen.map_workers(worker)(jnp.swapaxes(grads, 0, 1))
  states = jax.tree.map(lambda x: np.swapaxes(x, 0, 1), jax.device_get(states))
  return [jax.tree.map(lambda x, i=i: x[i], states) for i in range(len(grads))]


def reference(grads, smoothing):
  """The paper's RelativeGradChange in float64, [steps, workers]."""
  changes, past = [], None
  for grad in grads.astype(np.float64):
    x = np.sum(np.square(grad), axis=tuple(range(1, grad.ndim)))
    now = x if past is None else smoothing * x + (1 - smoothing) * past
    change = np.inf * x if past is None else np.abs(now - past) / past
    changes.append(change)
    past = now
  return np.array(changes)
