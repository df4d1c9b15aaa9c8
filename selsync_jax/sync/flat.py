"""Flat vectors from trees, because every message pays the network's latency."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from selsync_jax.sync import worker_mesh

Vector = Float32[Array, ' size']
Vectors = tuple[Float[Array, '...'], ...]


def by_dtype(tree: Any) -> tuple[Vectors, Callable[[Vectors], Any]]:
  """Flattens a tree to one vector for each floating-point dtype.

  Every device of a worker holds a part of each vector, in an order that depends
  on the devices, see `worker_mesh.pack`. Leaves that are split over explicit
  axes of a user's mesh follow the vectors unchanged. The second result is a
  function from such vectors to a tree like `tree`. It copies leaves of other
  dtypes (counters) from `tree`.
  """

  def flatten(leaves):
    by_dtype, split = {}, []
    for leaf in leaves:
      if worker_mesh.explicit_axes(leaf):
        split.append(leaf)
      else:
        by_dtype.setdefault(jnp.result_type(leaf), []).append(leaf)
    return (*map(worker_mesh.pack, by_dtype.values()), *split)

  return _flattened(flatten, tree)


def float32(tree: Any) -> tuple[Vector, Callable[[Vector], Any]]:
  """Flattens all floating-point leaves to one float32 vector, in order.

  Every device of a worker holds the whole vector. The second result is a
  function from such a vector to a tree like `tree`, with its dtypes.

  Raises:
    ValueError: if a leaf is split over explicit axes, because JAX cannot
      flatten it.
  """

  def flatten(leaves):
    for leaf in leaves:
      if axes := worker_mesh.explicit_axes(leaf):
        raise ValueError(
          f'an array {jax.typeof(leaf)} is split over the explicit mesh axis '
          f'{axes[0]!r}, but this method needs it whole; give that axis '
          'AxisType.Auto in jax.make_mesh(..., axis_types=...)'
        )
    whole = worker_mesh.whole(worker_mesh.at_rest(leaves))
    vectors = [jnp.ravel(leaf).astype(jnp.float32) for leaf in whole]
    return jnp.concatenate([jnp.zeros(0, jnp.float32), *vectors])

  return _flattened(flatten, tree)


def _flattened(flatten: Callable[[list[Any]], Any], tree: Any) -> Any:
  """Returns `flatten(floats(tree))`, and the function back to the tree."""
  leaves, treedef = jax.tree.flatten(tree)

  def rebuild(flat):
    # Flattening only moves elements, so its transpose is its inverse.
    (new,) = jax.linear_transpose(flatten, floats(leaves))(flat)
    rest = iter(new)
    return treedef.unflatten(
      next(rest) if is_float(leaf) else leaf for leaf in leaves
    )

  return flatten(floats(leaves)), rebuild


def parts(tree: Any) -> list[Float32[Array, '...']]:
  """Returns copies of the floating-point leaves, in float32.

  State with a tree's shapes is in this form, not in a vector. So the devices
  of a worker split it in the same way as the tree.
  """
  return [jnp.array(leaf, jnp.float32) for leaf in floats(tree)]


def zeros(tree: Any) -> list[Float32[Array, '...']]:
  """Returns zeros in the shapes of a tree's `parts`."""
  return [jnp.zeros(leaf.shape, jnp.float32) for leaf in floats(tree)]


def check_arrays(tree: Any) -> None:
  """Raises `ValueError` for a leaf that is not an array, by its name."""
  for path, leaf in jax.tree.leaves_with_path(tree):
    if not (hasattr(leaf, 'dtype') or isinstance(leaf, int | float | complex)):
      name = jax.tree_util.keystr(path, simple=True, separator='/') or 'tree'
      raise ValueError(
        f'{name} is a {type(leaf).__name__}, not an array; pass arrays alone; '
        'for an equinox module, eqx.filter(module, eqx.is_array)'
      )


def is_float(leaf: Any) -> bool:
  """Returns whether an array, or its shape, has a floating-point dtype."""
  return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def floats(tree: Any) -> list[Any]:
  """Returns the floating-point leaves, or their shapes."""
  return [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf)]


def floating(tree: Any) -> Any:
  """Replaces all but floating-point leaves by `None`, which optax ignores."""
  return jax.tree.map(lambda leaf: leaf if is_float(leaf) else None, tree)


def wide(tree: Any) -> Any:
  """Converts a tree to the dtypes of its sums, float32 at least."""
  return jax.tree.map(
    lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), tree
  )
