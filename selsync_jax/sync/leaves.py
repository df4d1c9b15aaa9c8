"""A selection of a tree's leaves, which is handled separately."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax


class Leaves(NamedTuple):
  """A selection of leaves, such as the parameters in an optimizer's state.

  Attributes:
    names: the path of each leaf.
    indices: the index of each leaf in `jax.tree.leaves(tree)`, ascending.
  """

  names: tuple[str, ...] = ()
  indices: tuple[int, ...] = ()

  def take(self, tree: Any) -> list[Any]:
    """Returns these leaves of a tree."""
    leaves = jax.tree.leaves(tree)
    return [leaves[i] for i in self.indices]

  def put(self, tree: Any, new: Sequence[Any]) -> Any:
    """Returns a tree with these leaves replaced."""
    leaves, structure = jax.tree.flatten(tree)
    for i, leaf in zip(self.indices, new, strict=True):
      leaves[i] = leaf
    return structure.unflatten(leaves)

  def rest(self, tree: Any) -> Any:
    """Returns a tree with `None` in place of these leaves."""
    return self.put(tree, [None] * len(self.indices))

  def put_rest(self, tree: Any, rest: Any) -> Any:
    """Returns a tree with all other leaves replaced by the leaves of `rest`."""
    others = iter(jax.tree.leaves(rest))
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten(
      leaf if i in self.indices else next(others)
      for i, leaf in enumerate(leaves)
    )


NONE = Leaves()
"""No leaves."""
