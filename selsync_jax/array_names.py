"""The names of a tree's arrays: their paths, such as `params/Dense_0/kernel`.

A slash inside a part of a path is `%2F`, and a percent sign `%25`.
"""

from typing import Any

import jax


def array_name(path: tuple[Any, ...]) -> str:
  """Returns the name of the leaf at a path of `jax.tree_util`."""
  parts = (jax.tree_util.keystr((key,), simple=True) for key in path)
  return '/'.join(p.replace('%', '%25').replace('/', '%2F') for p in parts)


def by_name(tree: Any) -> dict[str, Any]:
  """Returns the leaves of a tree by their names, in `jax.tree` order."""
  leaves = jax.tree.leaves_with_path(tree)
  return {array_name(path): leaf for path, leaf in leaves}
