"""Layouts of a cluster's devices: their time, traffic, and memory.

A layout is workers x data x fsdp. Every layout uses all devices, and all
layouts compute the same number of examples in a step. So a device's computation
is the same in each, and they differ in memory and in communication. A
collective's devices form a ring in the order of the mesh, in which neighbors
are on the same host wherever possible.
"""

from collections.abc import Iterable, Iterator
import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from selsync_jax.devices.layout import Layout
from selsync_jax.devices.mappers import abstract, split
from selsync_jax.sync import flat, traffic, worker_mesh
from selsync_jax.sync.network import Network
from selsync_jax.sync.traffic import Collective
from selsync_jax.sync.worker_mesh import AXIS, DATA, FSDP
from selsync_jax.training import step_cost
from selsync_jax.training.setup import Setup

Axes = tuple[str, ...]


class Cluster(NamedTuple):
  """Hosts with equally many devices."""

  hosts: int
  devices: int  # On each host.
  bandwidth: float  # Bits per second of a host's link, in each direction.
  inner_bandwidth: float  # Bits per second of a device's link inside its host.
  latency: float  # Seconds of delay of a message from one host to the next.

  @property
  def size(self) -> int:
    """The number of devices of all hosts."""
    return self.hosts * self.devices


class Plan(NamedTuple):
  """The cost of a layout's step, averaged over steps."""

  layout: Layout
  lssr: float  # The share of steps without an average.
  step: float  # Seconds.
  between: float  # Bytes that each host sends to other hosts.
  within: float  # Bytes that the devices of a host send each other.


class Memory(NamedTuple):
  """Bytes on each device."""

  parameters: int  # With the model state, and the parameters' moving average.
  optimizer: int
  method: int  # State of the method's parts, such as averagers and wires.
  temporary: int  # Batch, activations, and gradients of a step.

  @property
  def state(self) -> int:
    """Bytes between steps."""
    return self.parameters + self.optimizer + self.method

  @property
  def total(self) -> int:
    """Bytes during a step."""
    return self.state + self.temporary


def name(layout: Layout) -> str:
  """Returns a layout's name, such as `4x1x8`."""
  return f'{layout.workers}x{layout.data}x{layout.fsdp}'


def every(cluster: Cluster) -> tuple[list[Layout], dict[str, str]]:
  """Returns all possible layouts, and by name why others are impossible."""
  possible, impossible = [], {}
  for workers in _divisors(cluster.size):
    inside = cluster.size // workers
    for fsdp in _divisors(inside):
      shape = workers, inside // fsdp, fsdp
      try:
        layout = Layout(*shape)
        if cluster.devices % inside and inside % cluster.devices:
          raise ValueError(
            f'hosts of {cluster.devices} devices cannot evenly share workers '
            f'of {inside}'
          )
        possible.append(layout)
      except ValueError as error:
        impossible['x'.join(map(str, shape))] = str(error)
  return possible, impossible


def _divisors(number: int) -> list[int]:
  return [n for n in range(1, number + 1) if number % n == 0]


def plans(
  setup: Setup,
  layouts: Iterable[Layout],
  cluster: Cluster,
  lssr: float,
  compute: float,
) -> tuple[list[Plan], dict[str, str]]:
  """Returns the cost of each layout, the fastest first.

  The second result has the reason, by name, for layouts with a number of
  workers that the method cannot have.

  Args:
    setup: a setup with the method and the model; its mapper does not matter.
    layouts: the layouts to compare.
    cluster: the devices and their links.
    lssr: see `step_cost.cost`.
    compute: seconds of a device's own computation in a step.
  """
  found, impossible = [], {}
  for layout in layouts:
    try:
      setup.strategy.averager.check(layout.workers)
      found.append(_plan(setup, layout, cluster, lssr, compute))
    except ValueError as error:
      impossible[name(layout)] = str(error)
  return sorted(found, key=lambda plan: plan.step), impossible


def _plan(setup, layout, cluster, lssr, compute):
  """Returns the cost of a layout, see `plans`."""
  shapes, inside = setup.shapes, layout.devices_per_worker
  rings: dict[Axes, tuple[Network, float]] = {
    axes: _ring(layout, cluster, axes)
    for axes in ((AXIS,), (DATA,), (FSDP,), (DATA, FSDP))
  }
  inner = [(rings[axes], c) for axes, c in inner_collectives(setup, layout)]

  def shared(at):
    return sum(links.seconds(c) for (links, _), c in inner if c.at == at)

  links, leaving = rings[AXIS,]
  # Each device of a worker sends its own part.
  whole = links._replace(bandwidth=inside * links.bandwidth)
  cost = step_cost.cost(
    setup.strategy,
    shapes.shared,
    whole,
    lssr,
    shapes.moments,
    compute + shared('step'),
  )
  often = {'step': 1.0, 'sync': 1 - cost.lssr}
  sent = [(leaving, cost.sent / inside)]
  sent += [
    (leaving, often[c.at] * c.sent(links.workers))
    for (links, leaving), c in inner
  ]
  return Plan(
    layout,
    cost.lssr,
    step=cost.step + often['sync'] * shared('sync'),
    between=sum(leaving * nbytes for leaving, nbytes in sent),
    within=sum(
      (cluster.devices - leaving) * nbytes for leaving, nbytes in sent
    ),
  )


def _ring(
  layout: Layout, cluster: Cluster, axes: Axes
) -> tuple[Network, float]:
  """Returns the links of a ring over axes of the mesh.

  There is a ring for each index on the other axes, and all send at the same
  time. The second result is how many devices of a host send to another host.
  """
  mesh = np.arange(cluster.size).reshape(
    layout.workers, layout.data, layout.fsdp
  )
  over = [(AXIS, DATA, FSDP).index(axis) for axis in axes]
  size = math.prod(mesh.shape[i] for i in over)
  rings = np.moveaxis(mesh, over, range(-len(over), 0)).reshape(-1, size)
  hosts = rings // cluster.devices
  leaving = float(np.sum(hosts != np.roll(hosts, -1, axis=1)) / cluster.hosts)
  if not leaving:
    return Network(size, cluster.inner_bandwidth, 0.0), leaving
  bandwidth = cluster.bandwidth / leaving  # The devices share the host's link.
  if leaving < cluster.devices:
    bandwidth = min(bandwidth, cluster.inner_bandwidth)
  return Network(size, bandwidth, cluster.latency), leaving


def inner_collectives(
  setup: Setup, layout: Layout
) -> Iterator[tuple[Axes, Collective]]:
  """Yields the collectives inside a worker, with the axes that they are over.

  XLA gathers an array's parts for its use, and reduces its gradient, for every
  piece of the batch. The other parameters' gradients are reduced over all
  devices. An average of the workers arrives in parts.
  """
  fsdp, inside = layout.fsdp, layout.devices_per_worker

  def per_piece(kind, nbytes):
    return Collective(kind, nbytes, 'step', rate=setup.problem.accumulate)

  for x in flat.floats(setup.shapes.trained):
    size = traffic.nbytes(x)
    if worker_mesh.split_axis(x.shape, fsdp) is None:
      yield (DATA, FSDP), per_piece('all_reduce', size)
    else:
      yield (FSDP,), per_piece('all_gather', size / fsdp)
      yield (FSDP,), per_piece('all_reduce', size)
      yield (DATA,), per_piece('all_reduce', size / fsdp)
  shapes = setup.shapes
  sends = setup.strategy.sends_by_part(
    shapes.shared, layout.workers, shapes.moments
  )
  del sends['trigger']
  for c in sum(sends.values(), ()):
    part = c.nbytes / inside
    yield (DATA,), Collective('all_gather', part, c.at, c.rate)


def fitting(
  setup: Setup,
  plans: Iterable[Plan],
  examples: int,
  limit: float,
  count: int = 3,
) -> tuple[dict[Plan, Memory], dict[str, float]]:
  """Returns the first plans whose layouts fit into the devices.

  The second result has the bytes, by name, that earlier layouts lack. A layout
  whose state does not fit is not compiled, so it lacks at least these bytes.

  Args:
    setup: see `plans`.
    plans: the plans, the best first.
    examples: the number of examples of a step, of all workers together.
    limit: the bytes of a device.
    count: how many plans to return.
  """
  found, lacking = {}, {}
  for plan in plans:
    layout = plan.layout
    needed = state_memory(setup, layout)
    if needed.total <= limit:
      needed = memory(setup, layout, examples)
    if needed.total > limit:
      lacking[name(layout)] = needed.total - limit
    else:
      found[plan] = needed
    if len(found) == count:
      break
  return found, lacking


def state_memory(setup: Setup, layout: Layout) -> Memory:
  """Returns the memory of the state between steps, without compilation."""
  state = layout.abstract(setup.shapes)
  parameters = _held((state.params, state.model_state, state.ema))
  optimizer = _held(state.opt_state)
  return Memory(
    parameters, optimizer, _held(state) - parameters - optimizer, temporary=0
  )


def memory(setup: Setup, layout: Layout, examples: int) -> Memory:
  """Returns the memory of a step, as planned by XLA; see `compiled_step`."""
  planned = compiled_step(setup, layout, examples).memory_analysis()
  total = (
    planned.argument_size_in_bytes
    + planned.temp_size_in_bytes
    + planned.output_size_in_bytes
    - planned.alias_size_in_bytes
  )
  held = state_memory(setup, layout)
  return held._replace(temporary=total - held.state)


def compiled_step(setup: Setup, layout: Layout, examples: int) -> Any:
  """Compiles the step of all workers, and runs nothing.

  JAX must have as many devices as the layout. See `fitting` for the arguments.
  """
  setup = dataclasses.replace(setup, mapper=layout)
  batch = abstract(setup.batch(examples // layout.workers), layout.workers)
  step: Any = setup.train_step()
  return step.__wrapped__.lower(
    layout.abstract(setup.shapes), split(batch, layout.batch_sharding)
  ).compile()


def _held(states: Any) -> int:
  """Returns the bytes of arrays on one device, from shapes and shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(states)
  )
