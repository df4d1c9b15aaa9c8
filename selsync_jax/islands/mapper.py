"""An island as a mapper: a single worker, whose collectives are messages."""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
from jax.sharding import Sharding

from selsync_jax.config import ConfigError
from selsync_jax.devices import arrays
from selsync_jax.devices.mappers import Donated, Function, Mapper
from selsync_jax.devices.slices import ONE, Slices
from selsync_jax.islands.peers import Peers
from selsync_jax.islands.program import complete, cut, Form


@dataclasses.dataclass(frozen=True)
class IslandMapper(Mapper):
  """One worker on the first devices; other programs hold the other workers.

  Functions are cut at their collectives, and donate no arguments.

  Attributes:
    workers: N, the number of islands.
    peers: all islands.
    devices: devices of this worker, and how they share its work.
    processes: number of this worker's processes; in a replay, of the original.
  """

  peers: Peers
  devices: Slices = ONE
  processes: int = dataclasses.field(default_factory=jax.process_count)
  name: ClassVar[str] = 'island'
  compiles: ClassVar[bool] = True

  def __post_init__(self):
    if self.workers != (islands := len(self.peers.slots)):
      raise ConfigError(
        f'config.workers={self.workers}: this run has {islands} islands, '
        'each of which is a worker'
      )

  @property
  def local(self) -> range:
    return range(self.peers.slot, self.peers.slot + 1)

  def map_workers(self, fn: Function, donate: Donated = ()) -> Function:
    del donate
    run = cut(fn, self.form)
    return lambda *args: self.placed(complete(self.peers, run, *args))

  def placed(self, tree: Any) -> Any:
    """Returns the arrays on this worker's devices."""
    return jax.tree.map(
      lambda x: arrays.placed(x, self.sharding(x.shape)), tree
    )

  @property
  def devices_per_worker(self) -> int:
    return self.devices.devices_per_worker

  @property
  def form(self) -> Form:
    """Layout of values where programs are cut."""
    return Form(self.devices, self.processes)

  def sharding(self, shape: tuple[int, ...]) -> Sharding:
    return self.devices.sharding(shape)

  def stack(self, tree: Any) -> Any:
    return self.devices.stack(tree)

  def compute(
    self, fn: Function, *args: Any, compiler_options: Any = None
  ) -> Any:
    return self.devices.compute(fn, *args, compiler_options=compiler_options)

  def check(self) -> None:
    """Raises `ConfigError` if there are too few devices.

    An island of several processes must use all of their devices.
    """
    needed, found = self.devices_per_worker, jax.device_count()
    if found < needed or (jax.process_count() > 1 and found > needed):
      raise ConfigError(
        f'config.mesh: an island of {needed} devices sees {found} '
        f'({jax.default_backend()}); change mesh.data or mesh.fsdp'
      )

  def check_saved(self, workers: int) -> None:
    if workers != self.workers:  # Each island has only its own state.
      raise ConfigError(
        f'config.workers={self.workers}: this run has {workers} islands; to '
        'continue with others, start from the weights of their mean'
      )

  def gather(self, tree: Any) -> Any:
    gather = functools.partial(complete, self.peers, Peers.gather)
    return arrays.exchanged(tree, gather)
