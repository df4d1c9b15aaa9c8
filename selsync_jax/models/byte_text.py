"""Measures a byte-level language model's knowledge of the structure of code.

Two models with equal loss may differ in predictions that need a longer context:
the right closing bracket, and the indentation of a line.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

CLOSING = b')]}'
_SPACE, _NEWLINE = b' \n'

COUNTED = '_closing', '_closing_right', '_leading', '_leading_right'
"""The arrays of `counts`; `scores` are ratios of these."""


def counts(
  logits: Float[Array, 'batch time classes'],
  inputs: Integer[Array, 'batch time'],
  targets: Integer[Array, 'batch time'],
) -> dict[str, Bool[Array, 'batch time']]:
  """Returns kinds of tokens, each as a flag for every token.

  `_closing` marks closing brackets, and `_closing_right` the ones predicted by
  the highest score. `_leading` marks the spaces at the start of a line and the
  first byte after them. `_leading_right` marks the ones of these where the
  prediction is a space if and only if the target is.
  """
  found = jnp.argmax(logits, axis=-1)
  closing = jnp.isin(targets, jnp.array([*CLOSING]))
  leading = leads(inputs)
  is_space = (found == _SPACE) == (targets == _SPACE)
  each = closing, closing & (found == targets), leading, leading & is_space
  return dict(zip(COUNTED, each, strict=True))


def leads(
  inputs: Integer[Array, 'batch time'],
) -> Bool[Array, 'batch time']:
  r"""Returns whether only spaces are between a newline and the next token.

  >>> leads(jnp.array([[*b'a=1 \n  b']]))[0].astype(int).tolist()
  [0, 0, 0, 0, 1, 1, 1, 0]
  """
  place = jnp.arange(inputs.shape[-1])

  def last(where):
    return lax.cummax(jnp.where(where, place, -1), axis=inputs.ndim - 1)

  newline = inputs == _NEWLINE
  return last(newline) > last(~newline & (inputs != _SPACE))


def scores(means: Mapping[str, Any]) -> dict[str, jax.Array]:
  """Returns the shares of right predictions for brackets and indentation."""
  pairs = {'brackets': COUNTED[:2], 'indentation': COUNTED[2:]}
  return {
    name: means[right] / jnp.maximum(means[all_of], 1e-9)
    for name, (all_of, right) in pairs.items()
  }
