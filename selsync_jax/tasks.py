"""What a model is trained for: the loss and the metrics of a batch.

A batch is a dict of arrays with a leading axis of examples, one of them
`mask`, bool: the slots that hold an example. The others only fill the shape.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import optax

Batch = Mapping[str, Any]


class Task(NamedTuple):
  """What is read from a batch, and what is summed over it.

  Attributes:
    inputs: the name of the model's input in a batch.
    totals: `totals(outputs, batch) -> dict` of float32 sums over the examples
      of a batch: `count`, `loss` (what training minimises, per `count`), and
      metrics.
  """

  inputs: str
  totals: Callable[[Any, Batch], dict[str, Array]]


def classification_totals(
  logits: Float[Array, 'batch classes'], batch: Batch
) -> dict[str, Float[Array, '']]:
  """Sums of cross entropy (nats) and of hits among the first guess."""
  label: Int[Array, batch] = batch['label']
  mask: Bool[Array, batch] = batch['mask']
  losses = optax.softmax_cross_entropy_with_integer_labels(
    logits.astype(jnp.float32), label
  )
  hits = jnp.argmax(logits, axis=-1) == label
  return {
    'count': jnp.sum(mask, dtype=jnp.float32),
    'loss': jnp.sum(losses, where=mask),
    'accuracy': jnp.sum(hits, where=mask, dtype=jnp.float32),
  }


def language_totals(
  logits: Float[Array, 'batch time classes'], batch: Batch
) -> dict[str, Float[Array, '']]:
  """Sums over segments: cross entropy (nats) and hits, the mean of a token."""
  targets: Int[Array, 'batch time'] = batch['targets']
  mask: Bool[Array, batch] = batch['mask']
  losses = optax.softmax_cross_entropy_with_integer_labels(
    logits.astype(jnp.float32), targets
  )
  hits = jnp.argmax(logits, axis=-1) == targets
  return {
    'count': jnp.sum(mask, dtype=jnp.float32),
    'loss': jnp.sum(losses.mean(axis=-1), where=mask),
    'accuracy': jnp.sum(hits.mean(axis=-1), where=mask),
  }


TASKS = {
  'classification': Task('image', classification_totals),
  'language_modelling': Task('inputs', language_totals),
}


def init(
  model: nn.Module, task: Task, batch: Batch, key: Array
) -> tuple[Any, Any]:
  """Parameters, and model state that is not a parameter (batch statistics)."""
  init = jax.jit(functools.partial(model.init, train=False))
  variables = dict(init(key, batch[task.inputs]))
  params = variables.pop('params')
  return params, variables


def means(totals: Mapping[str, Any]) -> dict[str, Any]:
  """Means per example of the sums of a batch, or of several batches."""
  count = jnp.maximum(totals['count'], 1)
  return {k: v / count for k, v in totals.items() if k != 'count'}


def train_loss(
  model: nn.Module, task: Task
) -> Callable[[Any, Any, Batch, Array], tuple[Array, tuple[Any, Any]]]:
  """`(params, model_state, batch, key) -> loss, (metrics, model_state)`.

  The loss is the mean over the examples that the mask admits.
  """

  def loss(params, model_state, batch, key):
    outputs, model_state = model.apply(
      {'params': params, **model_state},
      batch[task.inputs],
      train=True,
      mutable=list(model_state),
      rngs={'dropout': key},
    )
    totals = task.totals(outputs, batch)
    metrics = means(totals) | {'count': totals['count']}
    return metrics['loss'], (metrics, model_state)

  return loss


def eval_totals(
  model: nn.Module, task: Task
) -> Callable[[Any, Any, Batch], dict[str, Array]]:
  """`(params, model_state, batch) -> totals`, with the model at rest."""

  def totals(params, model_state, batch):
    outputs = model.apply(
      {'params': params, **model_state}, batch[task.inputs], train=False
    )
    return task.totals(outputs, batch)

  return totals
