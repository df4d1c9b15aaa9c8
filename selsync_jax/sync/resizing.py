"""What becomes of a part's state when the number of workers changes.

A rule is a function `rule(saved, fresh, workers, step)` that returns the state
of the new workers. `saved` is the state of all old workers, `fresh` that of the
new ones before their first step; every leaf has a leading axis of workers.
`workers` are the indices of the new ones, and `step` is the optimizer step that
they have reached. A rule runs on NumPy arrays, or inside a compiled program. A
part declares its rule as `resize`, and a part made of parts hands theirs on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Resize = Callable[[Any, Any, Sequence[int], int], Any]


def reset(saved: Any, fresh: Any, workers: Sequence[int], step: int) -> Any:
  """The state before the first step."""
  del saved, workers, step
  return fresh


def first(saved: Any, fresh: Any, workers: Sequence[int], step: int) -> Any:
  """The first old worker's state for all, as of what is equal on all."""
  del fresh, step
  return jax.tree.map(lambda leaf: _repeat(leaf[0], len(workers)), saved)


def mean(saved: Any, fresh: Any, workers: Sequence[int], step: int) -> Any:
  """The mean over the old workers; of a counter, the first one's.

  New workers whose error memories are the mean have as much left to send,
  together, in their next average as the old ones had.
  """
  del fresh, step
  return jax.tree.map(lambda leaf: _repeat(_mean(leaf), len(workers)), saved)


def position(saved: Any, fresh: Any, workers: Sequence[int], step: int) -> Any:
  """The optimizer step, of what counts the steps of a run."""
  del saved, workers
  return jax.tree.map(lambda x: np.full(x.shape, step, x.dtype), fresh)


def fields(**rules: Resize) -> Resize:
  """The rule of a named tuple: a rule for each of some fields, others reset."""

  def resize(saved, fresh, workers, step):
    return fresh._replace(
      **{
        name: rule(getattr(saved, name), getattr(fresh, name), workers, step)
        for name, rule in rules.items()
      }
    )

  return resize


def each(rules: Sequence[Resize]) -> Resize:
  """The rule of a tuple: a rule for each element."""

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
