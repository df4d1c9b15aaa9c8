"""The mean over workers, and the `lax.cond` around it.

Everything here runs inside one mapped worker: `jax.pmap`, `jax.vmap` or
`jax.shard_map` over the axis `AXIS`.

References:
  Tyagi and Swany, `Accelerating Distributed ML Training via Selective
  Synchronization`, CLUSTER 2023, Algorithm 1.
"""

from collections.abc import Sequence
import functools
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from selsync_jax.sync import flat
from selsync_jax.sync.agreement import check_agreed, typed_as
from selsync_jax.sync.worker_mesh import AXIS


def check_mapped(axis_name: str) -> None:
  """Raises `NameError` outside of the mapped workers."""
  try:
    lax.axis_size(axis_name)
  except NameError:
    raise NameError(
      f'no axis {axis_name!r} is mapped here; map the step over it with '
      'jax.shard_map, jax.pmap or jax.vmap, or pass the name of your axis as '
      'axis_name'
    ) from None


def check_by_value(tree: Any) -> None:
  """Raises `ValueError` for a tree with an nnx module or a non-array leaf.

  Elsewhere an nnx module is passed by reference, so a caller would expect that
  it changes in place.
  """
  for node in jax.tree.leaves(tree, is_leaf=_is_module):
    if _is_module(node):
      raise ValueError(
        f'{type(node).__name__} is an nnx.Module, which is not changed in '
        'place; average its state: nnx.update(model, ss.synchronize(sync, '
        'nnx.state(model)))'
      )
  flat.check_arrays(tree)


def _is_module(node: Any) -> bool:
  """Whether a node is an nnx module, without an import of flax."""
  kinds = type(node).__mro__
  return ('flax.nnx.module', 'Module') in (
    (kind.__module__, kind.__name__) for kind in kinds
  )


def is_trigger(state: Any) -> bool:
  """Whether a node of an optimizer's state is the state of a trigger."""
  return hasattr(state, 'sync')


def consensus(
  tree: Any,
  *,
  where: Any = None,
  count: int | None = None,
  axis_name: str = AXIS,
) -> Any:
  """Returns the mean over workers of every floating-point leaf.

  All leaves of one dtype travel as one flat buffer in one collective, because
  on a network every collective pays its latency. Leaves of other dtypes
  (counters) are returned unchanged. Every worker receives the same bits.

  Args:
    tree: a pytree of arrays, of the same structure on all workers.
    where: bool [], whether this worker's values count; `None` counts all.
    count: the number of workers whose `where` is true. Passing only one of
      `where` and `count` is a `ValueError`.
  """
  if (where is None) != (count is None):
    raise ValueError('where and count go together')
  flat.check_arrays(tree)
  vectors, rebuild = flat.by_dtype(tree)
  if where is not None:
    vectors = [jnp.where(where, vector, 0) for vector in vectors]
  return rebuild(means(vectors, count, axis_name=axis_name))


def means(
  vectors: Sequence[Any], count: int | None = None, *, axis_name: str = AXIS
) -> tuple[Any, ...]:
  """Returns the sum over workers of each vector, divided by `count` or N.

  The sum is in float32 at least. In half precision, the mean of equal vectors
  would differ from these, and the sum might overflow.
  """
  check_mapped(axis_name)

  def mean(vector):
    wide = flat.wide(vector)
    if count is None:
      found = lax.pmean(wide, axis_name)
    else:
      found = lax.psum(wide, axis_name) / jnp.asarray(count, wide.dtype)
    return typed_as(found.astype(vector.dtype), vector)

  return tuple(map(mean, vectors))


def check_averaged(sync: Any, tree: Any, axis_name: str = AXIS) -> Any:
  """Returns `sync`, or raises `ValueError` for a mistake of a custom loop."""

  def of_trigger(node):  # A model may have a field `sync`, too.
    return isinstance(node, tuple) and is_trigger(node)

  if any(map(of_trigger, jax.tree.leaves(tree, is_leaf=of_trigger))):
    raise ValueError(
      'the tree holds the state of a trigger, which differs between workers; '
      "average parameters and batch statistics without the optimizer's state"
    )
  return check_agreed(sync, axis_name)


def synchronize(sync: Any, tree: Any, *, axis_name: str = AXIS) -> Any:
  """Replaces `tree` by its mean over workers where `sync` is true.

  This is parameter aggregation (Algorithm 1, lines 13 to 15), in one `lax.cond`
  over the whole tree. Call it after `optax.apply_updates`, with everything that
  should be averaged, for example `{'params': ..., 'batch_stats': ...}`.

  Args:
    sync: bool [], equal on all workers: `decision(opt_state)`. Workers that
      disagree wait for each other; on a CPU, XLA then aborts the process.
    tree: a pytree of arrays. Only floating-point leaves are averaged.

  Returns:
    A tree like `tree`, bit-identical on all workers. If `sync` is false,
    nothing is sent, and the result is `tree` itself.

  Raises:
    NameError: outside of the mapped workers.
    ValueError: if `sync` may differ between workers, which `jax.shard_map` and
      `jax.vmap` can tell; if a leaf is not an array; or if the tree has an nnx
      module or the state of a trigger.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> import selsync_jax as ss
    >>> workers = jnp.array([1., 2., 6.])
    >>> for sync in (False, True):
    ...   print(jax.vmap(lambda w: ss.synchronize(jnp.array(sync), w),
    ...                  axis_name=ss.AXIS)(workers))
    [1. 2. 6.]
    [3. 3. 3.]
  """
  check_by_value(tree)
  check_mapped(axis_name)
  sync = check_averaged(sync, tree, axis_name)
  mean = functools.partial(consensus, axis_name=axis_name)
  return lax.cond(sync, mean, lambda tree: tree, tree)
