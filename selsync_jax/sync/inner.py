"""The devices inside a worker, and how its arrays are split over them.

A worker may be a slice of a mesh. `jax.shard_map` is then manual over the
workers alone; the axes `DATA` and `FSDP` inside a worker are automatic, which
means that XLA splits the worker's computation over them. The functions here say
how. Where a worker is one device, they return their argument.

References:
  Rajbhandari et al., `ZeRO: Memory Optimizations Toward Training Trillion
    Parameter Models`, SC 2020 (stage 3: `at_rest` and `in_use`).
"""

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

DATA = 'data'
"""The axis over which a worker's devices hold the same parameters."""

FSDP = 'fsdp'
"""The axis over which they hold a part of them each."""

SMALL = 1024
"""Elements of an array below which every device of a worker holds all of it."""


class Sizes(NamedTuple):
  """The axes inside a worker; 1 and 1 if it is one device."""

  data: int
  fsdp: int

  @property
  def devices(self) -> int:
    """In a worker."""
    return self.data * self.fsdp


def sizes() -> Sizes:
  """Of the worker that is being traced.

  A mesh that is not a `Layout`'s may have an axis of the same name, which is
  its owner's.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if not (mesh.manual_axes and {DATA, FSDP} <= {*mesh.auto_axes}):
    return Sizes(1, 1)
  return Sizes(mesh.shape[DATA], mesh.shape[FSDP])


def split_axis(shape: tuple[int, ...], fsdp: int) -> int | None:
  """The axis along which an array is split, the longest one that divides.

  It depends on the shape alone, so an optimizer's moments are split as the
  parameters are.
  """
  if fsdp == 1 or math.prod(shape) < SMALL:
    return None
  fits = [i for i, length in enumerate(shape) if length % fsdp == 0]
  return max(fits, key=lambda i: shape[i], default=None)


def spec(shape: tuple[int, ...], fsdp: int) -> PartitionSpec:
  """How an array of one worker is split between steps."""
  axis = split_axis(shape, fsdp)
  return (
    PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, FSDP)
  )


def _cut(x: Any, *axes: Any) -> Any:
  return lax.with_sharding_constraint(x, PartitionSpec(*axes))


def at_rest(tree: Any) -> Any:
  """The arrays, split as between steps."""
  inside = sizes()
  if inside.devices == 1:
    return tree
  return jax.tree.map(lambda x: _cut(x, *spec(jnp.shape(x), inside.fsdp)), tree)


def whole(tree: Any) -> Any:
  """The arrays, all of them on every device of the worker."""
  if sizes().devices == 1:
    return tree
  return jax.tree.map(_cut, tree)


@jax.custom_vjp
def _in_use(x):
  return _cut(x)


_in_use.defvjp(lambda x: (_cut(x), None), lambda _, grad: (at_rest(grad),))


def in_use(params: Any) -> Any:
  """Parameters, gathered where they are used; gradients are split at once."""
  return jax.tree.map(_in_use, params) if sizes().fsdp > 1 else params


def pack(leaves: Sequence[Any]) -> Any:
  """Arrays of one dtype as one vector, of which every device has an equal part.

  An array that is split between steps is not gathered: each device packs what
  it holds. The vector ends with zeros where it would not divide.
  """
  data, fsdp = sizes()
  leaves = at_rest(leaves)
  split, others = _by_split(leaves, fsdp)
  rows = [_rows(leaves[i], axis, fsdp) for i, axis in split]
  if others:
    vector = jnp.concatenate([jnp.ravel(leaves[i]) for i in others])
    vector = whole(jnp.pad(vector, (0, -vector.size % fsdp)))
    rows.append(_by_row(vector.reshape(fsdp, -1)))
  matrix = _by_row(jnp.concatenate(rows, axis=1))
  matrix = _by_row(jnp.pad(matrix, ((0, 0), (0, -matrix.shape[1] % data))))
  return _spread(matrix.ravel())


def unpack(vector: Any, like: Sequence[Any]) -> list[Any]:
  """The inverse of `pack`, for arrays with the shapes of `like`."""
  fsdp = sizes().fsdp
  matrix = _by_row(_spread(vector).reshape(fsdp, -1))
  shapes = [jnp.shape(x) for x in like]
  split, others = _by_split(like, fsdp)
  leaves, start = list(like), 0
  for i, axis in split:
    stop = start + math.prod(shapes[i]) // fsdp
    leaves[i] = _from_rows(matrix[:, start:stop], shapes[i], axis)
    start = stop
  size = sum(math.prod(shapes[i]) for i in others)
  columns = matrix[:, start : start + -(-size // fsdp)]
  vector, start = whole(columns.ravel()), 0
  for i in others:
    stop = start + math.prod(shapes[i])
    leaves[i] = vector[start:stop].reshape(shapes[i])
    start = stop
  return at_rest(leaves)


def _by_split(leaves, fsdp) -> tuple[list[tuple[int, int]], list[int]]:
  """The indices and axes of arrays that are split, the indices of others."""
  axes = [split_axis(jnp.shape(leaf), fsdp) for leaf in leaves]
  split = [(i, axis) for i, axis in enumerate(axes) if axis is not None]
  return split, [i for i, axis in enumerate(axes) if axis is None]


def _rows(x, axis, fsdp):
  """A split array as [fsdp, *]: a row is what one device holds."""
  before, length, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
  x = x.reshape(*before, fsdp, length // fsdp, *after)
  return _by_row(jnp.moveaxis(x, axis, 0).reshape(fsdp, -1))


def _from_rows(rows, shape, axis):
  fsdp = rows.shape[0]
  before, length, after = shape[:axis], shape[axis], shape[axis + 1 :]
  parts = rows.reshape(fsdp, *before, length // fsdp, *after)
  return jnp.moveaxis(parts, 0, axis).reshape(shape)


def _by_row(matrix):
  """Pins a matrix [fsdp, *] to the devices of each row.

  Left alone, XLA splits what leads to it in other ways, in many messages.
  """
  return matrix if sizes().devices == 1 else _cut(matrix, FSDP)


def _spread(vector):
  return vector if sizes().devices == 1 else _cut(vector, (FSDP, DATA))


def in_parts(collective: Callable[[Any], Any], message: Any) -> Any:
  """A collective over workers, to which every device brings a part.

  All devices of a worker have the message and get the result, but no byte
  leaves the worker twice.

  Args:
    collective: acts alike on all elements along the last axis.
    message: of one worker, on all of its devices.
  """
  devices = sizes().devices
  if devices == 1:
    return collective(message)
  size, leading = message.shape[-1], [None] * (message.ndim - 1)
  padding = [(0, 0)] * len(leading) + [(0, -size % devices)]
  split = _cut(jnp.pad(message, padding), *leading, (FSDP, DATA))
  result = collective(split)
  result = _cut(result, *[None] * (result.ndim - 1), (FSDP, DATA))
  return whole(result)[..., :size]
