"""Values that are equal on all workers, as far as JAX can tell.

`jax.shard_map` tracks the mesh axes over which a value may vary, unless it is
called with `check_vma=False`. `jax.vmap` knows which values are batched.
`jax.pmap` knows nothing; there, values pass through unchanged.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap
import jax.numpy as jnp

from selsync_jax.sync.worker_mesh import AXIS
from selsync_jax.traced import typed_as_equal, varying


def varies_as(value: Any, axes: frozenset[str]) -> Any:
  """Returns a value whose type may also vary over these axes."""
  missing = tuple(sorted(axes - varying(value)))
  return lax.pcast(value, missing, to='varying') if missing else value


def typed_as(value: Any, like: Any) -> Any:
  """Returns a value that may vary wherever `like` may.

  A reduction returns a value that does not vary. The branches of a `lax.cond`,
  and the carry of a `lax.scan`, must nevertheless keep their types.
  """
  return varies_as(value, varying(like))


def varies_as_any(state: Any, tree: Any) -> Any:
  """Returns a state whose type may vary wherever a leaf of `tree` may.

  An `init` makes zeros, which do not vary. But `lax.scan` over steps needs a
  state of one type.
  """
  axes = frozenset().union(*map(varying, jax.tree.leaves(tree)))
  return jax.tree.map(lambda x: varies_as(x, axes), state)


def check_stacked(grads: Any, params: Any) -> None:
  """Raises `ValueError` if all workers are known to share the parameters."""
  if _equal(grads) and _equal(params):
    raise ValueError(
      'the parameters are one value for all workers, so jax.grad sums their '
      'gradients at every step; stack the parameters by worker, with the spec '
      'P(ss.AXIS) in place of P()'
    )


def check_local(grads: Any) -> None:
  """Raises `ValueError` if gradients are known to be equal on all workers."""
  if _equal(grads):
    raise ValueError(
      'the gradients are equal on all workers already; give the trigger each '
      "worker's own gradients, without a pmean or psum before it"
    )


def _equal(tree: Any) -> bool:
  """Whether a tree has arrays, none of which may vary by its type."""
  arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
  return bool(arrays) and not any(map(varying, arrays)) and _tracked()


def check_whole(tree: Any, axis_name: str) -> None:
  """Raises `ValueError` if a worker's devices may hold unequal parts of a tree.

  Each of them would vote for its own part of the model.
  """
  mesh = jax.sharding.get_abstract_mesh()
  inside = {a for a in mesh.manual_axes if mesh.shape[a] > 1} - {axis_name}
  if _tracked():
    inside &= frozenset().union(*map(varying, jax.tree.leaves(tree)))
  if inside:
    names = ', '.join(map(repr, sorted(inside)))
    raise ValueError(
      f'the devices along {names} may hold different parts of a worker, and '
      'each part would decide for itself; leave that axis to XLA: '
      f'jax.shard_map(..., axis_names={{{axis_name!r}}}); or, if it splits the '
      f'batch, keep check_vma on, and average the gradient over {names} first'
    )


def _tracked() -> bool:
  """Whether types record the mesh axes over which a value may vary."""
  axes = jax.sharding.get_abstract_mesh().manual_axes
  return any(varying(lax.axis_index(axis)) for axis in axes)


def agreed(flag: Any, axis_name: str) -> Any:
  """Returns a flag typed as equal on all workers; the caller must know it.

  A trigger's flag is stored in the state from step to step, and JAX then
  assumes that it might differ. Nothing is sent or checked.
  """
  if varying(flag):
    return typed_as_equal(flag)
  return _with_index(_under_vmap(lambda flags: flags[0]), flag, axis_name)


def check_agreed(flag: Any, axis_name: str) -> Any:
  """Returns a flag, or raises `ValueError` if it may differ between workers."""

  def refuse(flags):
    del flags
    named = '' if axis_name == AXIS else f', axis_name={axis_name!r}'
    raise ValueError(
      'the flag may differ between workers, and some would wait for the others '
      f'forever; pass ss.decision(opt_state{named}), or make the flag equal '
      f'with jax.lax.pmax(flag, {axis_name!r})'
    )

  if varying(flag):
    refuse(flag)
  return _with_index(_under_vmap(refuse), flag, axis_name)


def _under_vmap(of_workers: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
  """Returns a function that returns a flag unchanged.

  For flags batched by vmap, the function returns `of_workers(flags)`. Its
  second argument is the worker's index, which only the vmap over workers
  batches. So another vmap, over seeds for example, changes nothing.
  """

  @custom_vmap
  def same(flag, index):
    del index
    return flag

  @same.def_vmap
  def batched(size, is_batched, flag, index):
    del size
    if all(is_batched):
      return of_workers(flag), False
    return same(flag, index), is_batched[0]

  return same


def _with_index(function, flag, axis_name):
  try:
    index = lax.axis_index(axis_name)
  except NameError:  # The host reads a flag.
    return flag
  return function(jnp.asarray(flag), index)
