"""The devices inside a worker, and how its arrays are split over them.

A worker may be a slice of a mesh. `jax.shard_map` is then manual over the
workers alone, and XLA splits a worker's computation over the axes `DATA` and
`FSDP` inside it. The functions here control that split. If a worker is one
device, they return their argument.

An island's mesh has a single worker, and no axis is manual: an island sends
whole arrays through its host.

References:
  Rajbhandari et al., `ZeRO: Memory Optimizations Toward Training Trillion
    Parameter Models`, SC 2020 (stage 3: `at_rest` and `in_use`).
"""

from collections.abc import Callable, Sequence
import math
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

AXIS = 'workers'
"""The mapped axis: one index is one worker."""

DATA = 'data'
"""The axis over which a worker's devices hold the same parameters."""

FSDP = 'fsdp'
"""The axis over which a worker's devices each hold a part of the parameters."""

SMALL = 1024
"""Arrays with fewer elements are not split within a worker."""


def sizes() -> tuple[int, int]:
  """Returns the sizes of `DATA` and `FSDP` in the traced worker.

  Both are 1 if the worker is one device. Axes of the same names in a user's
  mesh are ignored.
  """
  mesh = jax.sharding.get_abstract_mesh()
  is_island = AXIS in mesh.auto_axes and mesh.shape[AXIS] == 1
  if not (
    (mesh.manual_axes or is_island) and {DATA, FSDP} <= {*mesh.auto_axes}
  ):
    return 1, 1
  return mesh.shape[DATA], mesh.shape[FSDP]


def is_island() -> bool:
  """Whether the traced function runs on an island of several devices."""
  manual = jax.sharding.get_abstract_mesh().manual_axes
  return not manual and sizes() != (1, 1)


def split_axis(shape: tuple[int, ...], fsdp: int) -> int | None:
  """Returns the axis along which an array is split: the longest divisible one.

  It depends only on the shape, so an optimizer's moments are split as the
  parameters are.
  """
  if fsdp == 1 or math.prod(shape) < SMALL:
    return None
  fits = [i for i, length in enumerate(shape) if length % fsdp == 0]
  return max(fits, key=lambda i: shape[i], default=None)


def spec(shape: tuple[int, ...], fsdp: int) -> PartitionSpec:
  """Returns the split of one worker's array between steps."""
  axis = split_axis(shape, fsdp)
  return PartitionSpec(*([] if axis is None else [None] * axis + [FSDP]))


def _cut(x: Any, *axes: Any) -> Any:
  if sizes() == (1, 1):
    return x
  return lax.with_sharding_constraint(x, PartitionSpec(*axes))


def explicit_axes(x: Any) -> list[Any]:
  """Returns the explicit axes of a user's mesh over which an array is split.

  JAX reshapes such an array only with an explicit sharding of the result.
  """
  return [axis for axis in jax.typeof(x).sharding.spec if axis is not None]


def at_rest(tree: Any) -> Any:
  """Splits arrays in the way used between steps."""
  _, fsdp = sizes()
  return jax.tree.map(lambda x: _cut(x, *spec(jnp.shape(x), fsdp)), tree)


def whole(tree: Any) -> Any:
  """Gathers arrays on every device of the worker."""
  return jax.tree.map(_cut, tree)


@jax.custom_vjp
def _in_use(x):
  return _cut(x)


_in_use.defvjp(lambda x: (_cut(x), None), lambda _, grad: (at_rest(grad),))


def in_use(params: Any) -> Any:
  """Gathers parameters for a computation; splits their gradients at once."""
  return jax.tree.map(_in_use, params) if sizes()[1] > 1 else params


def pack(leaves: Sequence[Any]) -> Any:
  """Packs arrays of one dtype into a vector split evenly over the devices.

  Each device packs its own parts. Zeros pad the vector to a suitable length.
  Islands may have different meshes, so their vectors are in the leaves' order.
  """
  if is_island():
    return jnp.concatenate([*map(jnp.ravel, leaves)])
  data, fsdp = sizes()
  leaves = at_rest(leaves)
  axes = [split_axis(jnp.shape(leaf), fsdp) for leaf in leaves]
  pairs = list(zip(leaves, axes, strict=True))
  rows = [_rows(x, axis, fsdp) for x, axis in pairs if axis is not None]
  if others := [jnp.ravel(x) for x, axis in pairs if axis is None]:
    vector = jnp.concatenate(others)
    vector = whole(jnp.pad(vector, (0, -vector.size % fsdp)))
    rows.append(_by_row(vector.reshape(fsdp, -1)))
  matrix = _by_row(jnp.concatenate(rows, axis=1))
  matrix = _by_row(jnp.pad(matrix, ((0, 0), (0, -matrix.shape[1] % data))))
  return _cut(matrix.ravel(), (FSDP, DATA))


def _rows(x, axis, fsdp):
  """Reshapes a split array to [fsdp, *], with one row per device."""
  before, length, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
  x = x.reshape(*before, fsdp, length // fsdp, *after)
  return _by_row(jnp.moveaxis(x, axis, 0).reshape(fsdp, -1))


def _by_row(matrix):
  """Pins each row of a matrix [fsdp, *] to its devices.

  Otherwise XLA splits the matrix's inputs differently, with many messages.
  """
  return _cut(matrix, FSDP)


def all_gather(message: Any, axis_name: str) -> Any:
  """Gathers the workers' messages; each device gathers a part."""
  return in_parts(lambda part: lax.all_gather(part, axis_name), message)


def in_parts(collective: Callable[[Any], Any], message: Any) -> Any:
  """Runs a collective over workers in parts, one for each device of a worker.

  All devices of a worker hold the message and get the result, but no byte
  leaves the worker twice. The collective must treat all elements of the last
  axis alike.
  """
  devices = math.prod(sizes())
  if devices == 1 or is_island():
    return collective(message)
  size, leading = message.shape[-1], [None] * (message.ndim - 1)
  padding = [(0, 0)] * len(leading) + [(0, -size % devices)]
  padded = jnp.pad(message, padding)
  added = [None] * (jax.eval_shape(collective, padded).ndim - message.ndim)
  # Manual over all axes: otherwise XLA would gather before it sends.
  split = jax.shard_map(
    collective,
    in_specs=PartitionSpec(*leading, (FSDP, DATA)),
    out_specs=PartitionSpec(*added, *leading, (FSDP, DATA)),
    axis_names={FSDP, DATA},
  )
  return whole(split(padded))[..., :size]
