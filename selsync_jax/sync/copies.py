"""Parameters that an optimizer holds in its own state.

Some optimizers compute the next parameters from a copy in their state:
schedule-free's `z`, a float32 master of bfloat16 parameters, the slow weights
of lookahead. An average that leaves out the copy is undone by the next update.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from selsync_jax.sync import flat
from selsync_jax.sync.worker_mesh import AXIS


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

_MARK = 95 / 256
"""A number exact in bfloat16 that no optimizer initializes a moment with."""


def parameter_copies(
  optimizer: optax.GradientTransformation,
  params: Any,
  *,
  axis_name: str = AXIS,
) -> Leaves:
  """Finds the parameters that an optimizer holds in its own state.

  These are the arrays of a parameter's shape that equal the parameters before
  the first step. An array that no update changes, such as the starting point of
  Prodigy, is not one of them. Slow weights that are not part of the optimizer's
  state, as in `optax.lookahead`, are not found.

  Args:
    optimizer: the optimizer, with or without a trigger in its chain.
    params: one worker's parameters, or their shapes.

  Returns:
    The arrays' names, with `take` and `put` for an average.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import selsync_jax as ss
    >>> params = {'w': jnp.zeros(3)}
    >>> ss.parameter_copies(optax.adam(0.1), params).names
    ()
    >>> tx = optax.contrib.schedule_free(optax.sgd(0.1), learning_rate=0.1)
    >>> ss.parameter_copies(tx, params).names
    ('z/w',)
  """
  state = jax.eval_shape(optimizer.init, params)
  # All lengths become 1, because only values matter.
  small = jax.tree.map(_shortened, params)
  if jax.tree.structure(jax.eval_shape(optimizer.init, small)) != (
    jax.tree.structure(state)
  ):
    small = params
  shapes = {jnp.shape(leaf) for leaf in flat.floats(params)}
  follows = _follow(optimizer, small, axis_name)
  ours = jax.tree.leaves(
    jax.tree.map(
      lambda node: jax.tree.map(lambda _: _is_ours(node), node),
      state,
      is_leaf=_is_ours,
    )
  )
  leaves = jax.tree.leaves_with_path(state)
  found = [
    (jax.tree_util.keystr(path, simple=True, separator='/'), i)
    for i, (path, leaf) in enumerate(leaves)
    if follows[i] and leaf.shape in shapes and not ours[i]
  ]
  return Leaves(tuple(name for name, _ in found), tuple(i for _, i in found))


def _is_ours(node: Any) -> bool:
  """Whether a node is the state of a trigger or of a reducer."""
  return type(node).__module__.startswith('selsync_jax.')


def _shortened(leaf: Any) -> Any:
  return jax.ShapeDtypeStruct((1,) * jnp.ndim(leaf), jnp.result_type(leaf))


def _follow(optimizer: Any, shapes: Any, axis_name: str) -> list[bool]:
  """Returns, for each array of the state, whether it follows the parameters.

  Such an array equals the parameters at first, and an update replaces it.
  """
  handed_on = []

  def filled():
    return jax.tree.map(
      lambda p: jnp.full(p.shape, _MARK).astype(p.dtype), shapes
    )

  def update(_):
    params = filled()
    state = optimizer.init(params)
    before = jax.tree.leaves(state)
    try:
      after = jax.tree.leaves(optimizer.update(params, state, params)[1])
    except Exception:  # An optimizer may need more than a gradient.
      after = [None] * len(before)
    handed_on[:] = [x is y for x, y in zip(before, after, strict=True)]

  # Mapped, because a trigger in the chain may vote. Not compiled, because that
  # can take seconds.
  jax.eval_shape(jax.vmap(update, axis_name=axis_name), jnp.zeros(1))
  with jax.ensure_compile_time_eval():
    started = jax.tree.leaves(optimizer.init(filled()))
  return [
    flat.is_float(x) and bool((np.asarray(x) == _MARK).all()) and not handed
    for x, handed in zip(started, handed_on, strict=True)
  ]
