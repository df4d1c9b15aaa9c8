"""Workers with several devices each, in one program."""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any, ClassVar
import warnings

import jax
from jax.custom_batching import custom_vmap
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import keystr
import numpy as np

from selsync_jax.devices.mappers import (
  abstract,
  Donated,
  Function,
  Map,
  Mapper,
  Pmap,
  split,
  Vmap,
)
from selsync_jax.devices.slices import Slices
from selsync_jax.sync import worker_mesh
from selsync_jax.sync.consensus import AXIS


@dataclasses.dataclass(frozen=True)
class Layout(Slices, Mapper):
  """Workers with several devices each, under `jax.shard_map`.

  Arrays are global: they have the rows of all workers. For the attributes see
  `Slices`.
  """

  name: ClassVar[str] = 'mesh'
  compiles: ClassVar[bool] = True

  def __post_init__(self):
    super().__post_init__()
    if self.workers == 1 < self.devices_per_worker:
      raise ValueError(
        f'workers must be at least 2 with {self.devices_per_worker} devices '
        'each, got 1; XLA cannot compile a mesh with one worker'
      )

  @property
  def rows(self) -> range:
    """The indices of all workers."""
    return range(self.workers)

  def spread(self, shape: tuple[int, ...]) -> NamedSharding:
    """Returns a sharding over as many devices as can share the array evenly.

    It is used to read the state of another number of workers, a part on each
    device. That part lies within the part that the device will keep.
    """
    names = self.mesh.axis_names[::-1]
    for over in (names[:i] for i in range(len(names), 0, -1)):
      parts = math.prod(self.mesh.shape[name] for name in over)
      if (axis := worker_mesh.split_axis(shape, parts)) is not None:
        spec = PartitionSpec(*[None] * axis, over)
        return NamedSharding(self.mesh, spec)
    return NamedSharding(self.mesh, PartitionSpec())

  def create(self, init: Callable[[jax.Array], Any]) -> Any:
    """Returns the state of all workers, from `init(worker)` for each.

    Args:
      init: a function from the worker's index, int32 [], to its state. Random
        keys must depend on the worker; parameters must not. It warns if a
        floating-point leaf depends on the worker.
    """
    workers, differ = jnp.arange(self.workers, dtype=jnp.int32), {}

    def one(worker):
      return jax.tree.map_with_path(
        functools.partial(_note_if_batched, differ), init(worker)
      )

    state = self.compute(lambda: jax.vmap(one)(workers))
    if differ:
      warnings.warn(
        f'init: state{next(iter(differ))} depends on the worker; parameters '
        'must start equal, so do not fold their random key with the worker',
        stacklevel=2,
      )
    return state

  def abstract_saved(self, tree: Any, workers: int) -> Any:
    """Returns the shapes of another number of workers' state, see `spread`."""
    return split(abstract(tree, workers), self.spread)

  def map_workers(self, fn: Function, donate: Donated = ()) -> Function:
    """Maps `fn` by `jax.shard_map`, manual over the workers alone.

    The result places arrays on the host as batches, [this process's workers,
    examples, ...]. Its `__wrapped__` is the compiled function, which takes
    arrays on the devices. It raises `ValueError` for an argument whose leading
    axis is not the workers.
    """

    def one(*args):
      result = fn(*jax.tree.map(lambda x: x[0], args))
      return jax.tree.map(lambda x: x[None], worker_mesh.at_rest(result))

    rows = PartitionSpec(AXIS)
    mapped = jax.shard_map(
      one, mesh=self.mesh, in_specs=rows, out_specs=rows, axis_names={AXIS}
    )

    def checked(*args):
      for path, x in jax.tree.leaves_with_path(args):
        _check_rows(path, x, self.workers)
      return mapped(*args)

    compiled = jax.jit(checked, donate_argnums=donate)

    def placed(path, x):
      if isinstance(x, jax.Array):
        return x
      _check_rows(path, x, len(self.local))
      shape = (self.workers, *np.shape(x)[1:])
      return jax.make_array_from_process_local_data(
        self.batch_sharding(shape), np.asarray(x), shape
      )

    # With one device per worker, jit splits host arrays itself, and faster.
    by_jit = self.devices_per_worker == 1 and jax.process_count() == 1

    @functools.wraps(compiled)
    def call(*args):
      # The caller may have set another mesh with `jax.set_mesh`.
      with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
        return compiled(
          *(args if by_jit else jax.tree.map_with_path(placed, args))
        )

    return call

  def check(self) -> None:
    """Raises `ConfigError` if the devices cannot hold the workers."""
    super().check()
    _ = self.mesh  # Raises if a process has too few devices.


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


def _note_if_batched(found: dict[str, bool], path: Any, x: Any) -> Any:
  """Returns a leaf; notes the name of a floating-point leaf batched by vmap."""
  if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
    return x

  @custom_vmap
  def same(x):
    return x

  @same.def_vmap
  def batched(_, is_batched, x):
    if is_batched[0]:
      found[keystr(path)] = True
    return x, is_batched[0]

  return same(x)


def _check_rows(path: Any, x: Any, workers: int) -> None:
  """Raises `ValueError` unless the leading axis of an argument is workers."""
  rows, *rest = jnp.shape(x) or (None,)
  if rows == workers:
    return
  name = f'{path[0].idx}{keystr(path[1:])}'
  if rows is None:
    raise ValueError(
      f'argument {name} has no leading axis, for {workers} workers: pass a row '
      'for each worker'
    )
  examples = 'examples' if rows % workers else rows // workers
  shape = ', '.join(map(str, (workers, examples, *rest)))
  raise ValueError(
    f'argument {name} has leading axis {rows}, for {workers} workers: pass a '
    f'row for each worker; a batch is stacked as [{shape}]'
  )


def describe() -> dict[str, Any]:
  """Returns facts about the devices of all processes, for a JSON file."""
  return {
    'platform': jax.default_backend(),
    'kind': jax.devices()[0].device_kind,
    'count': jax.device_count(),
    'processes': jax.process_count(),
  }
