"""Rules for a part's state when the number of workers changes.

A rule is a function `rule(saved, fresh, workers, step)` that returns the state
of the new workers. `saved` is the state of all old workers, and `fresh` the
state of the new workers before their first step; every leaf has a leading axis
of workers. `workers` are the indices of the new workers, and `step` is the
optimizer step that they have reached. A rule runs on NumPy arrays, or inside a
compiled program. A part declares its rule as `resize`; a part made of parts
combines their rules.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Resize = Callable[[Any, Any, Sequence[int], int], Any]


def reset(saved: Any, fresh: Any, workers: Sequence[int], step: int) -> Any:
  """Returns the state before the first step."""
  return fresh


def first(saved: Any, fresh: Any, workers: Sequence[int], step: int) -> Any:
  """Copies the first old worker's state to all; for states that are equal."""
  return jax.tree.map(lambda leaf: _repeat(leaf[0], len(workers)), saved)


def mean(saved: Any, fresh: Any, workers: Sequence[int], step: int) -> Any:
  """Gives all workers the mean over the old workers.

  Counters are copied from the first worker. For error memories, the next
  average then receives as much as it would have received from the old workers.
  """
  return jax.tree.map(lambda leaf: _repeat(_mean(leaf), len(workers)), saved)


def position(saved: Any, fresh: Any, workers: Sequence[int], step: int) -> Any:
  """Returns the optimizer step, for state that counts the steps of a run."""
  return jax.tree.map(lambda x: np.full(x.shape, step, x.dtype), fresh)


def fields(**rules: Resize) -> Resize:
  """Returns the rule of a named tuple, from rules by field; others reset."""

  def resize(saved, fresh, workers, step):
    new = {
      name: rule(getattr(saved, name), getattr(fresh, name), workers, step)
      for name, rule in rules.items()
    }
    return fresh._replace(**new)

  return resize


def each(rules: Sequence[Resize]) -> Resize:
  """Returns the rule of a tuple, from a rule for each element."""

  def resize(saved, fresh, workers, step):
    pairs = zip(rules, saved, fresh, strict=True)
    return tuple(rule(old, new, workers, step) for rule, old, new in pairs)

  return resize


def _mean(leaf):
  if np.issubdtype(leaf.dtype, np.integer) or leaf.dtype == bool:
    return leaf[0]
  wide = jnp.promote_types(leaf.dtype, np.float32)
  return leaf.mean(axis=0, dtype=wide).astype(leaf.dtype)


def _repeat(leaf, times):
  library = jnp if isinstance(leaf, jax.Array) else np
  return library.broadcast_to(leaf, (times, *np.shape(leaf)))
