"""Placement of the arrays of a custom loop, which an island must not change."""

from collections.abc import Callable, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import numpy as np

NO_MESH = Mesh(np.empty((), object), ())
"""Replaces the caller's mesh while an island traces its program."""


def plain(tree: Any) -> Any:
  """Returns a tree whose types do not say how its arrays are split.

  All islands must trace the same program, whatever meshes they have. Therefore,
  the caller's mesh is not set either while they trace.
  """

  def strip(sharding):
    if not isinstance(sharding, NamedSharding):
      return sharding
    mesh = Mesh(sharding.mesh.devices, sharding.mesh.axis_names)
    return NamedSharding(mesh, sharding.spec)

  leaves, structure = jax.tree.flatten(tree)
  typed = _places(leaves)
  places = [*map(strip, typed)]
  if places == typed:
    return tree
  return jax.tree.unflatten(structure, jax.device_put(leaves, places))


def placed_as(like: Any, tree: Any) -> Any:
  """Copies a tree to the placement of another tree's arrays.

  The caller may donate the copy; an island keeps its own arrays.
  """
  leaves, structure = jax.tree.flatten(tree)
  places = _places(jax.tree.leaves(like))
  if places == _places(leaves) and None not in places:
    copies = _copy(tuple(places))(leaves)
  else:
    copies = jax.device_put(leaves, places, may_alias=False)
  return jax.tree.unflatten(structure, copies)


def _places(leaves: Sequence[Any]) -> list[Any]:
  """Returns the sharding of each array; `None` for arrays on no device."""
  return [getattr(leaf, 'sharding', None) for leaf in leaves]


@functools.cache
def _copy(places: tuple[Any, ...]) -> Callable[[list[Any]], list[Any]]:
  """Returns a function that copies arrays with these shardings.

  One program takes a tenth of the time of a `device_put` for that many arrays.
  """
  return jax.jit(
    lambda leaves: [*map(jnp.copy, leaves)], out_shardings=[*places]
  )
