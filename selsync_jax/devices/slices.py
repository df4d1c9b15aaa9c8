"""Placement of arrays for workers that each own a slice of a mesh."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from selsync_jax.config import ConfigError
from selsync_jax.devices import arrays
from selsync_jax.devices.mappers import Function
from selsync_jax.sync import worker_mesh
from selsync_jax.sync.worker_mesh import AXIS


@dataclasses.dataclass(frozen=True)
class Slices:
  """Workers that each own a slice of a mesh.

  Inside a worker, the examples of its batch are split over all devices. Its
  state between steps is split over the axis `fsdp`, see `worker_mesh.spec`, and
  replicated over the axis `data`.

  Attributes:
    workers: N, the number of workers of all processes.
    data: the number of devices inside a worker that hold the same parameters.
    fsdp: the number of devices inside a worker that each hold a part of the
      parameters.
  """

  workers: int
  data: int = 1
  fsdp: int = 1

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if value < 1:
        raise ValueError(f'{name} must be at least 1, got {value}')

  @property
  def devices_per_worker(self) -> int:
    """The number of devices inside a worker."""
    return self.data * self.fsdp

  @property
  def spans_processes(self) -> bool:
    """Whether this process has only a part of the devices."""
    return self.mesh.is_multi_process

  @functools.cached_property
  def mesh(self) -> Mesh:
    """The first devices of every process; neighbors are in the same worker.

    Raises:
      ConfigError: if a process has too few devices.
    """
    axes = {AXIS: self.workers}
    if self.devices_per_worker > 1:  # Otherwise it is the same program as pmap.
      axes |= {worker_mesh.DATA: self.data, worker_mesh.FSDP: self.fsdp}
    shape, count = tuple(axes.values()), jax.process_count()
    if math.prod(shape) == 1:  # The only device is in this process.
      count = 1
    each, devices = math.prod(shape) // count, []
    for process in range(count) if count > 1 else [jax.process_index()]:
      found = jax.local_devices(process)
      if len(found) < each:
        raise ConfigError(
          f'{self}: needs {each} devices in each process, but process '
          f'{process} has {len(found)}'
        )
      devices += found[:each]
    return Mesh(
      np.reshape(devices, shape),
      tuple(axes),
      axis_types=(AxisType.Auto,) * len(axes),
    )

  def sharding(self, shape: tuple[int, ...]) -> NamedSharding:
    """Returns the sharding of an array [workers, ...] between steps."""
    if 0 in shape:  # XLA does not split an empty array.
      return NamedSharding(self.mesh, PartitionSpec())
    spec = worker_mesh.spec(shape[1:], self.fsdp)
    return NamedSharding(self.mesh, PartitionSpec(AXIS, *spec))

  def batch_sharding(self, shape: tuple[int, ...]) -> NamedSharding:
    """Returns the sharding of a batch [workers, examples, ...].

    If a worker's devices cannot share the examples evenly, each has all.
    """
    inside = self.devices_per_worker
    if inside == 1 or len(shape) < 2 or shape[1] % inside:
      return NamedSharding(self.mesh, PartitionSpec(AXIS))
    examples = (worker_mesh.DATA, worker_mesh.FSDP)
    return NamedSharding(self.mesh, PartitionSpec(AXIS, examples))

  def stack(self, tree: Any) -> Any:
    """Stacks arrays of one worker over all workers."""
    return jax.tree.map(
      lambda x: jnp.broadcast_to(x, (self.workers, *jnp.shape(x))), tree
    )

  def compute(
    self, fn: Function, *args: Any, compiler_options: Any = None
  ) -> Any:
    """Returns the state from `fn(*args)`, already split.

    Arrays of one worker on the host are split like the state.
    """

    def placed(x):
      spec = worker_mesh.spec(x.shape, self.fsdp)
      return arrays.placed(x, NamedSharding(self.mesh, spec))

    args = jax.tree.map(placed, args)
    shapes = jax.eval_shape(fn, *args)
    return jax.jit(
      fn,
      out_shardings=jax.tree.map(lambda x: self.sharding(x.shape), shapes),
      compiler_options=compiler_options,
    )(*args)


ONE = Slices(1)
"""A worker with one device."""
