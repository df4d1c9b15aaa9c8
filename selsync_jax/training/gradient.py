"""The gradient of a worker's batch, whole or piece by piece."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from selsync_jax.devices.in_turn import in_loop
from selsync_jax.models import token_weights
from selsync_jax.sync import flat, worker_mesh

Loss = Callable[..., Any]
"""`(params, model_state, batch, key) -> loss, (metrics, model_state)`.

Loss and metrics are means over the examples that `batch['mask']` selects, with
the weights of `token_weights.totals`."""

Gradient = Callable[..., Any]
"""`(params, model_state, batch, key) -> grads, (metrics, model_state)`."""


def gradient(loss: Loss, pieces: int = 1) -> Gradient:
  """Returns the gradient of a loss, for one worker.

  With several `pieces`, it divides the batch equally and computes one piece
  after another, so it needs the activations of one piece at a time. Gradients
  and metrics are for the whole batch. Model state, such as batch statistics,
  passes through the pieces in turn, and each folds its index into the key.
  """

  def in_use(params, *args):
    return loss(worker_mesh.in_use(params), *args)

  whole = jax.grad(in_use, has_aux=True)
  return whole if pieces == 1 else _accumulated(in_loop(whole), pieces)


def _accumulated(one: Gradient, pieces: int) -> Gradient:
  """Returns the gradient of a batch, from the gradient of a piece."""

  def split(x):
    # Every k-th example, so that all devices of a worker share each piece.
    return jnp.moveaxis(x.reshape(-1, pieces, *x.shape[1:]), 1, 0)

  def accumulated(params, model_state, batch, key):
    whole = token_weights.totals(batch)

    def add(carry, piece):
      total, model_state = carry
      index, examples = piece
      # Otherwise XLA gathers split parameters before the loop, all at once.
      here, examples = lax.optimization_barrier((params, examples))
      grads, (metrics, model_state) = one(
        here, model_state, examples, jax.random.fold_in(key, index)
      )
      share = token_weights.weight(metrics) / jnp.maximum(
        token_weights.weight(whole), 1
      )
      grads, metrics = jax.tree.map(lambda x: share * x, (grads, metrics))
      return (jax.tree.map(jnp.add, total, grads), model_state), metrics

    start = jax.tree.map(jnp.zeros_like, flat.wide(params))
    (total, model_state), metrics = lax.scan(
      add,
      (start, model_state),
      (jnp.arange(pieces), jax.tree.map(split, batch)),
    )
    grads = jax.tree.map(lambda x, p: x.astype(p.dtype), total, params)
    metrics = jax.tree.map(lambda x: jnp.sum(x, axis=0), metrics)
    return grads, (metrics | whole, model_state)

  return accumulated
