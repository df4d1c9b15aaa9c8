"""Weights of examples: the number of tokens counted by a `loss_mask`.

See `tasks` for the masks of a batch.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

Batch = Mapping[str, Any]

WEIGHT = '_weight'
"""The key for the sum of the examples' weights, used with a `loss_mask`."""


def token_mean(
  values: Shaped[Array, 'batch time'], batch: Batch
) -> Float[Array, 'batch']:
  """Returns each example's mean over the tokens counted by its `loss_mask`.

  An example without counted tokens has mean 0 and weight 0.
  """
  if 'loss_mask' not in batch:
    return jnp.mean(values, axis=-1)
  counted = batch['loss_mask'] != 0
  total = jnp.sum(values, axis=-1, where=counted, dtype=jnp.float32)
  return total / jnp.maximum(jnp.sum(counted, axis=-1), 1)


def totals(batch: Batch) -> dict[str, Float[Array, '']]:
  """Returns the `count` of the unmasked examples, and their `WEIGHT`."""
  count = {'count': jnp.sum(batch['mask'], dtype=jnp.float32)}
  if 'loss_mask' not in batch:
    return count
  return count | sums({WEIGHT: jnp.ones(len(batch['mask']))}, batch)


def weight(totals: Mapping[str, Any]) -> Any:
  """Returns the divisor that turns sums into means."""
  return totals.get(WEIGHT, totals['count'])


def sums(
  metrics: Mapping[str, Any], batch: Batch
) -> dict[str, Float[Array, '']]:
  """Returns weighted sums of metrics [batch] over the unmasked examples."""
  return {
    name: jnp.sum(
      _weighted(values, batch), where=batch['mask'], dtype=jnp.float32
    )
    for name, values in metrics.items()
  }


def _weighted(values, batch):
  """Multiplies values [batch] by the number of counted tokens per example."""
  if 'loss_mask' not in batch:
    return values
  counted = batch['loss_mask'] != 0
  tokens = jnp.sum(counted.reshape(len(counted), -1), axis=1, dtype=jnp.float32)
  return jnp.where(tokens > 0, tokens * values, 0)


def means(sums: Mapping[str, Any]) -> dict[str, Any]:
  """Divides the sums of one or several batches by their weight or count."""
  total = jnp.maximum(weight(sums), 1)
  return {k: v / total for k, v in sums.items() if k not in ('count', WEIGHT)}
