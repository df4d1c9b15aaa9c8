"""Arrays over the workers of all processes.

The leading axis of an array is the workers. A process has the rows of its own
workers, in the order of the processes' indices. With one process, `gather`,
`to_global` and `to_local` return their argument.
"""

from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from selsync_jax.sync.consensus import AXIS


def local_values(array: Any) -> np.ndarray:
  """Copies the rows of this process's workers to the host."""
  shards = sorted(array.addressable_shards, key=lambda s: s.index[0].start)
  return np.concatenate([np.asarray(shard.data) for shard in shards])


def first_worker(tree: Any) -> Any:
  """Copies the rows of this process's first worker to the host.

  They may be split over devices of this process.
  """

  def first(array):
    shards = array.addressable_shards
    start = min(shard.index[0].start or 0 for shard in shards)
    row = np.empty(array.shape[1:], array.dtype)
    for shard in shards:
      if (shard.index[0].start or 0) == start:
        row[shard.index[1:]] = np.asarray(shard.data)[0]
    return row

  return jax.tree.map(first, tree)


def gather(tree: Any) -> Any:
  """Gathers host arrays [..., local workers] to [..., workers].

  All leaves are sent in one exchange, as bytes: on a slow network, the number
  of exchanges determines the time.
  """
  if jax.process_count() == 1:
    return tree
  leaves, structure = jax.tree.flatten(tree)
  fields = [(str(i), x.dtype, x.shape) for i, x in enumerate(leaves)]
  own = np.frombuffer(b''.join(x.tobytes() for x in leaves), np.uint8)
  each = np.ascontiguousarray(multihost_utils.process_allgather(own))
  record = each.view(np.dtype(fields))[:, 0]
  joined = [np.concatenate(list(record[name]), -1) for name, _, _ in fields]
  return structure.unflatten(joined)


def to_global(tree: Any) -> Any:
  """Joins arrays [local workers, ...] of all processes to [workers, ...]."""
  if jax.process_count() == 1:
    return tree
  return multihost_utils.host_local_array_to_global_array(
    tree, _mesh(), PartitionSpec(AXIS)
  )


def to_global_shapes(shapes: Any) -> Any:
  """`to_global` of `jax.ShapeDtypeStruct`s [local workers, ...].

  With one process they keep their own sharding.
  """
  processes = jax.process_count()
  if processes == 1:
    return shapes
  sharding = NamedSharding(_mesh(), PartitionSpec(AXIS))

  def stack(x):
    shape = (x.shape[0] * processes, *x.shape[1:])
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

  return jax.tree.map(stack, shapes)


def to_local(tree: Any) -> Any:
  """The inverse of `to_global`."""
  if jax.process_count() == 1:
    return tree
  return multihost_utils.global_array_to_host_local_array(
    tree, _mesh(), PartitionSpec(AXIS)
  )


def _mesh() -> Mesh:
  """All devices in the order of their workers, which is that of pmap."""
  devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
  return Mesh(devices, (AXIS,))
