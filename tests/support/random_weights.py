"""Random weights for any model, without compiling its initializers."""

import functools

import jax
import numpy as np

# Passed to `jax.jit`: a program that runs once compiles faster unoptimized.
UNOPTIMIZED = {'xla_backend_optimization_level': 0}


def random_variables(model, x):
  """Parameters and statistics with the model's shapes and typical scales."""
  init = functools.partial(model.init, train=False)
  rng = np.random.default_rng(1)

  def draw(path, leaf):
    noise = rng.normal(size=leaf.shape).astype(np.float32)
    if path[-1].key in ('kernel', 'embedding'):
      return noise * np.float32((2 * leaf.shape[-1] / leaf.size) ** 0.5)
    if path[-1].key in ('scale', 'var'):
      return np.exp(np.float32(0.3) * noise)
    return np.float32(0.1) * noise

  shapes = jax.eval_shape(init, jax.random.key(0), x)
  return jax.tree_util.tree_map_with_path(draw, shapes)
