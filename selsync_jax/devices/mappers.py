"""The mappers: a worker per device, all on one, or each a slice of a mesh.

The same functions of one worker run under `jax.pmap`, `jit(vmap)` or
`shard_map`. With `map`, workers under `vmap` run in turn wherever they do not
communicate. The arrays of a mesh are global; arrays of other mappers hold the
rows of this process's workers.
"""

import dataclasses
from typing import ClassVar

import jax
from jax.sharding import (
  Mesh,
  NamedSharding,
  PartitionSpec,
  Sharding,
  SingleDeviceSharding,
)

from selsync_jax.config import ConfigError
from selsync_jax.devices.in_turn import in_turn
from selsync_jax.devices.layout import Layout
from selsync_jax.devices.mapper import Donated, Function, Mapper
from selsync_jax.sync.consensus import AXIS


@dataclasses.dataclass(frozen=True)
class Pmap(Mapper):
  """One worker per device."""

  name: ClassVar[str] = 'pmap'

  def map_workers(self, fn: Function, donate: Donated = ()) -> Function:
    """Maps `fn` by `jax.pmap`."""
    return jax.pmap(fn, axis_name=AXIS, donate_argnums=donate)

  def sharding(self, shape: tuple[int, ...]) -> Sharding:
    """Returns the sharding of one row per local device."""
    mesh = Mesh(jax.local_devices()[: shape[0]], (AXIS,))
    return NamedSharding(mesh, PartitionSpec(AXIS))


@dataclasses.dataclass(frozen=True)
class Vmap(Mapper):
  """All workers at once on the first device."""

  name: ClassVar[str] = 'vmap'

  def map_workers(self, fn: Function, donate: Donated = ()) -> Function:
    """Maps `fn` by `jax.vmap`."""
    return jax.jit(jax.vmap(fn, axis_name=AXIS), donate_argnums=donate)

  def sharding(self, shape: tuple[int, ...]) -> Sharding:
    """Returns the first device."""
    return SingleDeviceSharding(jax.local_devices()[0])

  def check(self) -> None:
    """Raises `ConfigError` if there are several processes."""
    if (processes := jax.process_count()) > 1:
      raise ConfigError(
        f'config.mapper={self.name}: needs a single process, got {processes}'
      )


@dataclasses.dataclass(frozen=True)
class Map(Vmap):
  """All workers on the first device, in turn between collectives."""

  name: ClassVar[str] = 'map'

  def alone(self, fn: Function) -> Function:
    """Returns `fn` as a loop over the workers, see `in_turn`."""
    return in_turn(fn)


def choose(name: str, workers: int, data: int = 1, fsdp: int = 1) -> Mapper:
  """Returns the mapper of a name, or the fastest mapper here for `auto`.

  With enough devices, `auto` gives each worker its own. Otherwise `map` is
  faster on a CPU (`python -m benchmarks.speed.mappers`). Only `mesh` has `data`
  and `fsdp`, see `Layout`.
  """
  if name == Layout.name:
    return Layout(workers, data, fsdp)
  if name != 'auto':
    return {mapper.name: mapper for mapper in (Pmap, Vmap, Map)}[name](workers)
  if jax.process_count() > 1 or jax.device_count() >= workers:
    return Pmap(workers)
  return Map(workers) if jax.default_backend() == 'cpu' else Vmap(workers)


def needs_devices(name: str) -> bool:
  """Whether a mapper spreads workers over devices, or `auto` may do so."""
  return name not in (Vmap.name, Map.name)
