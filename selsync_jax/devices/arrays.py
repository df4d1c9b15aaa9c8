"""Arrays over the workers of all processes.

The leading axis of an array is the workers, in the order of the processes. A
local array has the rows of this process's workers. A global array has the rows
of all workers, and a process holds the parts on its devices. The mapper `mesh`
and checkpoints use global arrays. With one process, both are the same.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
import numpy as np

from selsync_jax.cluster import processes
from selsync_jax.sync.consensus import AXIS


def local_values(array: Any) -> np.ndarray:
  """Copies the rows of this process's workers to the host.

  The array [workers, ...] must not be split inside a worker.
  """
  # Several devices of a worker have the same row, hence one key for each row.
  rows = {s.index[0].start or 0: s for s in array.addressable_shards}
  return np.concatenate([np.asarray(rows[i].data) for i in sorted(rows)])


def first_worker(tree: Any, copies: bool = True) -> Any:
  """Copies the rows of arrays [workers, ...] of this process's first worker.

  All processes must call this, because a worker may span several processes. In
  that case its devices gather one array at a time, never all of them. A process
  gets `None`s unless it `copies`.
  """

  def first(array):
    shards = _within_processes(array).addressable_shards
    if not copies:
      return None
    start = min(shard.index[0].start or 0 for shard in shards)
    row = np.empty(array.shape[1:], array.dtype)
    for shard in shards:
      if (shard.index[0].start or 0) == start:
        row[shard.index[1:]] = np.asarray(shard.data)[0]
    return row

  return jax.tree.map(first, tree)


def placed(array: Any, sharding: Sharding) -> Any:
  """Places an array on the devices, if every process has it on its host."""
  if isinstance(array, jax.Array):
    return array
  return jax.make_array_from_callback(
    np.shape(array), sharding, np.asarray(array).__getitem__
  )


def everywhere(array: Any) -> Any:
  """Replicates an array of several processes, so that each can read it.

  All processes must call this.
  """
  if array.is_fully_addressable or array.is_fully_replicated:
    return array
  whole = NamedSharding(array.sharding.mesh, PartitionSpec())
  return jax.jit(jnp.asarray, out_shardings=whole)(array)


def contents(tree: Any) -> Iterator[bytes]:
  """Yields the content of each array of a tree, without its shape.

  All processes must iterate over it; only the first one gets any.
  """
  for leaf in jax.tree.leaves(tree):
    array = everywhere(leaf)
    if processes.is_first():
      yield np.asarray(array).tobytes()


def from_contents(read: Callable[[int], bytes], like: Any) -> Any:
  """Returns a tree from `contents`, of which `read` reads a number of bytes.

  `like` has shapes, types and shardings, as arrays or `jax.ShapeDtypeStruct`s.
  """

  def place(like):
    content = read(like.size * like.dtype.itemsize)
    whole = np.frombuffer(content, like.dtype).reshape(like.shape)
    return placed(whole, like.sharding)

  return jax.tree.map(place, like)


def _within_processes(array: Any) -> Any:
  """Returns the array with each worker's row inside one process."""
  if _is_local(array) or jax.process_count() <= array.shape[0]:
    return array
  whole = NamedSharding(array.sharding.mesh, PartitionSpec(AXIS))
  # A function with a name is compiled only once for each shape.
  return jax.jit(jnp.asarray, out_shardings=whole)(array)


def gather(tree: Any, workers: int) -> Any:
  """Gathers host arrays [..., local workers] to [..., workers].

  A worker may span several processes.
  """
  if jax.process_count() == 1:
    return tree
  once = max(1, jax.process_count() // workers)
  joined = exchanged(tree, multihost_utils.process_allgather)
  return jax.tree.map(lambda x: x[..., ::once], joined)


def exchanged(tree: Any, exchange: Callable[[np.ndarray], Any]) -> Any:
  """Joins host arrays of all programs, of equal shapes, along the last axis.

  `exchange` gathers a row of bytes of each program. It is called once, because
  on a slow network the number of exchanges determines the time.
  """
  leaves, structure = jax.tree.flatten(tree)
  fields = [(str(i), x.dtype, x.shape) for i, x in enumerate(leaves)]
  own = np.frombuffer(b''.join(x.tobytes() for x in leaves), np.uint8)
  each = np.ascontiguousarray(exchange(own))
  record = each.view(np.dtype(fields))[:, 0]
  joined = [np.concatenate(list(record[name]), -1) for name, _, _ in fields]
  return structure.unflatten(joined)


def to_global(tree: Any) -> Any:
  """Joins local arrays of all processes; returns global arrays unchanged."""
  if jax.process_count() == 1 or not _is_local(tree):
    return tree
  return multihost_utils.host_local_array_to_global_array(
    tree, _mesh(), PartitionSpec(AXIS)
  )


def to_global_shapes(shapes: Any) -> Any:
  """Applies `to_global` to `jax.ShapeDtypeStruct`s."""
  processes = jax.process_count()
  if processes == 1 or not _is_local(shapes):
    return shapes
  sharding = NamedSharding(_mesh(), PartitionSpec(AXIS))

  def stack(x):
    shape = (x.shape[0] * processes, *x.shape[1:])
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

  return jax.tree.map(stack, shapes)


def to_local(tree: Any, like: Any) -> Any:
  """Inverts `to_global`; `like` has the shapes of the local arrays."""
  if jax.process_count() == 1 or not _is_local(like):
    return tree
  return multihost_utils.global_array_to_host_local_array(
    tree, _mesh(), PartitionSpec(AXIS)
  )


def _is_local(tree: Any) -> bool:
  """Whether arrays, or their shapes, belong to this process alone."""
  leaves = jax.tree.leaves(tree)
  return all(leaf.sharding.is_fully_addressable for leaf in leaves)


def _mesh() -> Mesh:
  """Returns all devices in the order of their workers under `pmap`."""
  devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
  return Mesh(devices, (AXIS,))
