"""A user's own averager, of two rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import selsync_jax as ss


def clipped_mean(radius):
  """The mean over workers, with each worker's distance from it limited."""

  def apply(tree, state):
    center = jax.lax.pmean(tree, ss.AXIS)
    away = optax.tree.sub(tree, center)
    shorter = jnp.minimum(1, radius / jnp.maximum(optax.tree.norm(away), 1e-12))
    moved = jax.lax.pmean(optax.tree.scale(shorter, away), ss.AXIS)
    return optax.tree.add(center, moved), state

  return ss.Averager(lambda tree: (), apply)


def reference(rows, radius):
  """Computes the same from the workers' vectors, [N, size]."""
  center = rows.mean(axis=0)
  away = rows - center
  norms = np.linalg.norm(away, axis=1, keepdims=True)
  return center + (np.minimum(1, radius / norms) * away).mean(axis=0)
