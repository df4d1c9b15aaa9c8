"""One worker's function over all workers, and their stacked state.

State is worker-stacked: every leaf has a leading axis of workers, because
between synchronizations workers really differ. The same functions run one
worker per device under `jax.pmap`, all of them on one device under `jit(vmap)`,
or each on several devices of a mesh. A mesh's arrays are of the workers of all
processes, the others' of this process's workers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from jax.sharding import Sharding
from jax.sharding import SingleDeviceSharding
import numpy as np

from selsync_jax.devices.layout import Layout
from selsync_jax.sync.consensus import AXIS

Mapper = str | Layout
"""`pmap`, one worker per device; `vmap`, all on the first device; or a
`Layout`, each worker on some devices of a mesh."""


def create(name: str, workers: int, data: int, fsdp: int) -> Mapper:
  """The mapper of a config.

  Args:
    name: `pmap`, `vmap` or `mesh`.
    workers: of all processes.
    data: see `Layout`.
    fsdp: see `Layout`.
  """
  return Layout(workers, data, fsdp) if name == 'mesh' else name


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
  if mapper == 'vmap':
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

  def place(x):
    sharding = _sharding(x.shape, mapper)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(place, abstract(tree, workers))


def _sharding(shape: tuple[int, ...], mapper: Mapper) -> Sharding:
  if isinstance(mapper, Layout):
    return mapper.sharding(shape)
  devices = jax.local_devices()
  if mapper == 'vmap':
    return SingleDeviceSharding(devices[0])
  return NamedSharding(Mesh(devices[: shape[0]], (AXIS,)), PartitionSpec(AXIS))
