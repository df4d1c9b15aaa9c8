"""One worker's function over all workers, and their stacked state.

State is worker-stacked: every leaf has a leading axis of workers, because
between synchronizations workers really differ. The same functions run one
worker per device under `jax.pmap`, or all of them on one device under
`jit(vmap)`, whose mapper `map` takes them in turn wherever they do not
communicate, or each on several devices of a mesh. A mesh's arrays are of the
workers of all processes, the others' of this process's workers.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from jax.sharding import Sharding
from jax.sharding import SingleDeviceSharding
import numpy as np

from selsync_jax.devices.in_turn import in_turn
from selsync_jax.devices.layout import Layout
from selsync_jax.devices.layout import ONE_DEVICE
from selsync_jax.sync.consensus import AXIS

Mapper = str | Layout
"""`pmap`, one worker per device; `vmap` or `map`, all on the first device; or a
`Layout`, each worker on some devices of a mesh."""


def choose(mapper: str, workers: int, data: int = 1, fsdp: int = 1) -> Mapper:
  """The mapper that a config names, or that is fastest here for `auto`.

  On a CPU, `map` is as fast as `pmap` and needs no virtual devices, and `vmap`
  is slower (`python -m benchmarks.speed.mappers`). Each worker gets an
  accelerator of its own, if there are enough of them.

  Args:
    mapper: `auto`, `mesh`, or the name of another mapper.
    workers: of all processes.
    data: of `mesh`, see `Layout`.
    fsdp: of `mesh`, see `Layout`.
  """
  if mapper == 'mesh':
    return Layout(workers, data, fsdp)
  if mapper != 'auto':
    return mapper
  if jax.process_count() > 1:
    return 'pmap'
  if jax.default_backend() == 'cpu':
    return 'map'
  return 'pmap' if jax.device_count() >= workers else 'vmap'


def alone(fn: Callable[..., Any], mapper: Mapper) -> Callable[..., Any]:
  """What a worker computes without the others, as a part of its function.

  Args:
    fn: a function of one worker's arrays, without collectives.
    mapper: of the function that calls it; under `map`, workers take turns.
  """
  return in_turn(fn) if mapper == 'map' else fn


def map_workers(
  fn: Callable[..., Any], mapper: Mapper, donate: tuple[int, ...] = ()
) -> Callable[..., Any]:
  """`fn` of one worker, compiled for all workers at once.

  Args:
    fn: a function of one worker's arrays; collectives over `AXIS`.
    mapper: how the workers share the devices.
    donate: the arguments whose memory the result may take.

  Returns:
    `fn` over arrays with a leading axis of workers.
  """
  if isinstance(mapper, Layout):
    return mapper.map_workers(fn, donate)
  if mapper in ONE_DEVICE:
    return jax.jit(jax.vmap(fn, axis_name=AXIS), donate_argnums=donate)
  return jax.pmap(fn, axis_name=AXIS, donate_argnums=donate)


def place(tree: Any, mapper: Mapper) -> Any:
  """Arrays with a leading axis of local workers, on the workers' devices.

  They pass through a mapped program, so that they are laid out as its results
  are. State placed in another way would make the first step compile twice.
  """
  if isinstance(mapper, Layout):
    return mapper.place(tree, mapper.sharding)
  return map_workers(lambda tree: tree, mapper)(tree)


def replicate(tree: Any, count: int) -> Any:
  """Host copies of one worker's `tree`, stacked: all workers start equal."""
  return jax.tree.map(
    lambda x: np.broadcast_to(np.asarray(x), (count, *np.shape(x))), tree
  )


def abstract(tree: Any, count: int) -> Any:
  """The shapes of one worker's `tree` stacked over `count` workers."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((count, *jnp.shape(x)), jnp.result_type(x)),
    tree,
  )


def abstract_state(tree: Any, workers: int, mapper: Mapper) -> Any:
  """`abstract`, with the shardings that a mapper's results have.

  State that is restored with them needs no pass through the devices, and the
  first step does not compile a second time for it.

  Args:
    tree: of one worker.
    workers: of this process.
    mapper: how the workers share the devices.
  """
  if isinstance(mapper, Layout):
    workers = mapper.workers

  return split(
    abstract(tree, workers), functools.partial(_sharding, mapper=mapper)
  )


def split(shapes: Any, sharding: Callable[[tuple[int, ...]], Sharding]) -> Any:
  """`jax.ShapeDtypeStruct`s with the shardings that belong to their shapes."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding(x.shape)
    ),
    shapes,
  )


def _sharding(shape: tuple[int, ...], mapper: Mapper) -> Sharding:
  if isinstance(mapper, Layout):
    return mapper.sharding(shape)
  devices = jax.local_devices()
  if mapper in ONE_DEVICE:
    return SingleDeviceSharding(devices[0])
  return NamedSharding(Mesh(devices[: shape[0]], (AXIS,)), PartitionSpec(AXIS))
