"""Mappers run one worker's function over all workers.

State is worker-stacked: every leaf has a leading axis of workers, because
workers differ between synchronizations. A mapper runs one worker's function
over all rows, and places rows on the same devices as its results.

The same functions run under `jax.pmap`, `jit(vmap)` or `shard_map` (see
`Layout`). With `map`, workers under `vmap` run in turn wherever they do not
communicate. The arrays of a mesh are global; arrays of other mappers hold the
rows of this process's workers.
"""

import abc
from collections.abc import Callable
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import (
  Mesh,
  NamedSharding,
  PartitionSpec,
  Sharding,
  SingleDeviceSharding,
)
import numpy as np

from selsync_jax.cluster import processes
from selsync_jax.config import ConfigError
from selsync_jax.devices import arrays
from selsync_jax.devices.in_turn import in_turn
from selsync_jax.sync.consensus import AXIS

Function = Callable[..., Any]
Donated = tuple[int, ...]
"""The arguments whose memory a compiled function may reuse for its result."""


@dataclasses.dataclass(frozen=True)
class Mapper(abc.ABC):
  """A mapping of the workers to the devices.

  Attributes:
    workers: N, the number of workers of all processes.
    name: the mapper's name in a config.
    compiles: whether `replicate` and `compute` compile their function.
  """

  workers: int
  name: ClassVar[str]
  compiles: ClassVar[bool] = False

  @property
  def devices_per_worker(self) -> int:
    """The number of devices inside a worker."""
    return 1

  @property
  def local(self) -> range:
    """The indices of the workers that this program runs."""
    return processes.local_workers(self.workers)

  @property
  def rows(self) -> range:
    """The indices of the workers whose rows are in this program's arrays."""
    return self.local

  @abc.abstractmethod
  def map_workers(self, fn: Function, donate: Donated = ()) -> Function:
    """Compiles `fn` of one worker for arrays with a leading axis of workers.

    Its collectives are over `AXIS`.
    """

  def alone(self, fn: Function) -> Function:
    """Returns the function that a mapped function should call in place of `fn`.

    `fn` must not have collectives.
    """
    return fn

  @abc.abstractmethod
  def sharding(self, shape: tuple[int, ...]) -> Sharding:
    """Returns the sharding of a mapped function's result [workers, ...]."""

  def place(self, tree: Any) -> Any:
    """Places host arrays [this process's workers, ...] on the devices.

    They pass through a mapped program, so that they get the layout of its
    results. With another layout, the first step would compile twice.
    """
    return self.map_workers(lambda tree: tree)(tree)

  def stack(self, tree: Any) -> Any:
    """Repeats one worker's `tree` for all `rows`, since workers start equal."""
    count = len(self.rows)
    return jax.tree.map(
      lambda x: np.broadcast_to(np.asarray(x), (count, *np.shape(x))), tree
    )

  def compute(
    self, fn: Function, *args: Any, compiler_options: Any = None
  ) -> Any:
    """Returns the state [rows, ...] from `fn`, on its devices.

    A mapper that compiles `fn` uses the compiler options of `jax.jit`.
    """
    del compiler_options
    return self.place(fn(*args))

  def replicate(
    self, init: Function, *args: Any, compiler_options: Any = None
  ) -> Any:
    """Returns the state of all `rows`, from `init(*args)` for each.

    The arguments are arrays of one worker, on the host.
    """
    return self.compute(
      lambda *args: self.stack(init(*args)),
      *args,
      compiler_options=compiler_options,
    )

  def abstract(self, tree: Any) -> Any:
    """Returns the shapes of one worker's `tree` stacked, with shardings.

    The shardings are the same as for a mapped function's results. So restored
    state needs no pass through the devices, and the first step does not compile
    twice.
    """
    return split(abstract(tree, len(self.rows)), self.sharding)

  def abstract_saved(self, tree: Any, workers: int) -> Any:
    """Returns shapes to read a state that was saved with more or fewer workers.

    The shapes have no sharding, so the arrays are read into the host's memory.
    """
    return abstract(tree, workers)

  def gather(self, tree: Any) -> Any:
    """Gathers host arrays [..., local workers] to [..., workers]."""
    return arrays.gather(tree, self.workers)

  def check(self) -> None:
    """Raises `ConfigError` if the devices cannot hold the workers."""
    programs, devices = jax.process_count(), jax.device_count()
    inside = self.devices_per_worker
    each, way = 'one device', '--config.mapper=auto'
    if inside > 1:
      each, way = f'{inside} devices', 'a smaller mesh.data or mesh.fsdp'
    if devices < self.workers * inside:
      raise ConfigError(
        f'config.workers={self.workers}: mapper {self.name} needs {each} per '
        f'worker, but there are {devices} ({jax.default_backend()}); '
        f'use fewer workers, or {way}'
      )
    if programs > 1 and devices != self.workers * inside:
      raise ConfigError(
        f'config.workers={self.workers}: with {programs} processes, workers '
        f'with {each} each must use all {devices} devices'
      )

  def check_saved(self, workers: int) -> None:
    """Raises `ConfigError` if a run of that many workers cannot resume here."""
    del workers


@dataclasses.dataclass(frozen=True)
class Pmap(Mapper):
  """One worker per device."""

  name: ClassVar[str] = 'pmap'

  def map_workers(self, fn: Function, donate: Donated = ()) -> Function:
    return jax.pmap(fn, axis_name=AXIS, donate_argnums=donate)

  def sharding(self, shape: tuple[int, ...]) -> Sharding:
    mesh = Mesh(jax.local_devices()[: shape[0]], (AXIS,))
    return NamedSharding(mesh, PartitionSpec(AXIS))


@dataclasses.dataclass(frozen=True)
class Vmap(Mapper):
  """All workers at once on the first device."""

  name: ClassVar[str] = 'vmap'

  def map_workers(self, fn: Function, donate: Donated = ()) -> Function:
    return jax.jit(jax.vmap(fn, axis_name=AXIS), donate_argnums=donate)

  def sharding(self, shape: tuple[int, ...]) -> Sharding:
    return SingleDeviceSharding(jax.local_devices()[0])

  def check(self) -> None:
    if (processes := jax.process_count()) > 1:
      raise ConfigError(
        f'config.mapper={self.name}: needs a single process, got {processes}'
      )


@dataclasses.dataclass(frozen=True)
class Map(Vmap):
  """All workers on the first device, in turn between collectives."""

  name: ClassVar[str] = 'map'

  def alone(self, fn: Function) -> Function:
    return in_turn(fn)


def needs_devices(name: str) -> bool:
  """Whether a mapper spreads workers over devices, or `auto` may do so."""
  return name not in (Vmap.name, Map.name)


def abstract(tree: Any, count: int) -> Any:
  """Returns the shapes of one worker's `tree` stacked over `count` workers."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((count, *jnp.shape(x)), jnp.result_type(x)),
    tree,
  )


def split(shapes: Any, sharding: Callable[[tuple[int, ...]], Sharding]) -> Any:
  """Gives `jax.ShapeDtypeStruct`s the sharding for their shape."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding(x.shape)
    ),
    shapes,
  )
