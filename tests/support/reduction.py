"""A reducer over recorded gradients."""

import jax
import numpy as np

from selsync_jax.devices import layout


def run(reducer, grads, mapper='vmap'):
  """Means and states after each step, for leaves [steps, workers, ...]."""

  def worker(grads):
    def step(state, grad):
      mean, state = reducer.update(grad, state)
      return state, (mean, state)

    first = jax.tree.map(lambda x: x[0], grads)
    return jax.lax.scan(step, reducer.init(first), grads)[1]

  def swapped(tree):
    return jax.tree.map(lambda x: np.swapaxes(x, 0, 1), tree)

  chosen = layout.choose(mapper, jax.tree.leaves(grads)[0].shape[1])
  results = chosen.map_workers(worker)(swapped(grads))
  return swapped(jax.device_get(results))
