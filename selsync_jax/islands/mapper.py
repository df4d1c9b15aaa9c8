"""An island as a mapper: how the trainer runs a worker that is a program."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import pathlib
import time
from typing import Any, ClassVar

import jax
from jax.sharding import Sharding
import numpy as np

from selsync_jax.cluster import processes
from selsync_jax.cluster.agreement import Agreement
from selsync_jax.config import ConfigError
from selsync_jax.data.leases import batch_of
from selsync_jax.data.leases import Leases
from selsync_jax.data.leases import Reader
from selsync_jax.data.pace import Pace
from selsync_jax.data.pace import Watch
from selsync_jax.data.protocol import Batch
from selsync_jax.data.protocol import Data
from selsync_jax.devices import arrays
from selsync_jax.devices.mapper import Donated
from selsync_jax.devices.mapper import Function
from selsync_jax.devices.mapper import Mapper
from selsync_jax.devices.slices import ONE
from selsync_jax.devices.slices import Slices
from selsync_jax.islands import resuming
from selsync_jax.islands.behind import Behind
from selsync_jax.islands.behind import steps_of_travel
from selsync_jax.islands.peers import Peers
from selsync_jax.islands.program import cut
from selsync_jax.islands.program import Form
from selsync_jax.islands.resuming import Takers
from selsync_jax.islands.rounds import Rounds
from selsync_jax.runs import checkpoints
from selsync_jax.runs.checkpoints import Choice
from selsync_jax.sync.averagers import Delay
from selsync_jax.sync.budget import asks_travel
from selsync_jax.sync.budget import with_travel


@dataclasses.dataclass(frozen=True)
class IslandMapper(Mapper):
  """One worker on the first devices; the others are other programs.

  Attributes:
    workers: N, the number of islands.
    peers: all of them.
    rounds: the log of this one.
    is_free: whether this run has `config.pace='free'`.
    devices: those of this worker, and how they share its work.
  """

  peers: Peers
  rounds: Rounds
  is_free: bool = False
  devices: Slices = ONE
  name: ClassVar[str] = 'island'
  compiles: ClassVar[bool] = True

  def __post_init__(self):
    if self.workers != (islands := len(self.peers.slots)):
      raise ConfigError(
        f'config.workers={self.workers}: this run is of {islands} islands, '
        'each of which is a worker'
      )

  @property
  def local(self) -> range:
    """The index of this island, whoever else is there."""
    return range(self.peers.slot, self.peers.slot + 1)

  @functools.cached_property
  def leases(self) -> Leases:
    """Who reads which part of the data."""
    return Leases(self.workers)

  @functools.cached_property
  def pace(self) -> Pace:
    """Who rests in which step, if they keep their own pace."""
    return Pace(self.workers)

  @functools.cached_property
  def watch(self) -> Watch:
    """How long this island's steps take."""
    return Watch()

  @property
  def kept(self) -> dict[str, Any]:
    """The leases, the pace, and who has the state of all, if one is alone."""
    kept: dict[str, Any] = {
      'leases': self.leases.to_json(),
      'pace': self.pace.to_json(),
    }
    if self.peers.size == 1:
      kept['original'] = self.peers.slot
    return kept

  @property
  def _there(self) -> list[int]:
    """The slots of the islands that are there."""
    return [self.peers.slots.index(name) for name in self.peers.names]

  def batches(
    self,
    data: Data,
    start: int,
    stop: int,
    record: Mapping[str, Any] | None = None,
  ) -> Iterator[Batch]:
    """Yields what this island reads: its own part, or that of one that is gone.

    Whoever is there when a batch is asked for takes the next step, or ends.
    """
    known: Mapping[str, Any] = {}
    if record and record['workers'] == self.workers:
      known = record
    self.leases.begin(start, known.get('leases'))
    self.pace.begin(known.get('pace'))
    reader, batch = Reader(data, stop), None
    for _ in range(start, stop):
      # Who has another one's state has lost what its own one had.
      self.leases.lose(map(self.peers.slots.index, self.rounds.copied))
      self.rounds.readers = list(self.peers.names)
      there, slot = self._there, self.peers.slot
      rest = self.pace.next(there) if self.is_free else None
      self.rounds.rest = rest or set()
      cells = self.leases.next(there, self.rounds.rest)
      batch = batch_of(reader, cells, slot, rest, batch)
      yield batch

  def map_workers(self, fn: Function, donate: Donated = ()) -> Function:
    """Cuts `fn` at its collectives; nothing is donated to its pieces."""
    del donate
    run = cut(fn, self.form)

    def placed(x):
      return arrays.placed(x, self.sharding(x.shape))

    def call(*args):
      return jax.tree.map(placed, self.peers.complete(run, *args))

    return call

  def map_steps(self, step: Function, delay: Delay | None) -> Function:
    """Maps a training step, whose delayed means travel behind the next ones."""
    mapped, behind = self.map_workers(step), None
    if delay:
      behind = Behind(self.peers, delay, self.form)
    self.peers.late = behind

    def call(state, batch):
      began = time.perf_counter()
      if behind:
        behind.arrived = None
      state, metrics = mapped(state, batch)
      synced = bool(np.asarray(metrics['synced'])[0])
      if behind and (synced or self.peers.prepares):
        behind.depart(state.averager_state)
      if not self.peers.prepares:
        arrived = behind.arrived if behind else None
        self.leases.complete(
          self._there,
          self.rounds.rest,
          synced=synced,
          late=bool(behind),
          arrived=arrived,
        )
        if averaged := self.leases.averaged:
          self.peers.averaged()
        members, shares, travel = list(self.peers.names), None, None
        if self.is_free and averaged:
          shares = self._planned()
        elif behind and averaged and asks_travel(state.trigger_state):
          travel = steps_of_travel(self.peers, self.watch, behind.watch)
          if travel:
            triggered = with_travel(state.trigger_state, travel)
            state = state.replace(trigger_state=triggered)
        elif not (synced or self.peers.slot in self.rounds.rest):
          self.watch.add(time.perf_counter() - began)
        self.rounds.add(state, members, averaged, arrived, shares, travel)
        self.peers.reach(int(np.asarray(state.step)[0]))
      return state, metrics

    return call

  def _planned(self) -> list[int]:
    """Returns the shares of the steps that each slot takes from now on."""
    own = np.array([self.watch.median])
    each = self.peers.complete(lambda peers: peers.share(own))
    seconds = [each_own.item() for each_own in each]
    self.pace.plan(dict(zip(self._there, seconds, strict=True)))
    return [*self.pace.shares]

  @property
  def places(self) -> tuple[range, int]:
    """That of this island in an evaluation by those that are there."""
    return range(self.peers.index, self.peers.index + 1), self.peers.size

  @property
  def programs(self) -> int:
    """The number of islands."""
    return self.workers

  @property
  def agreement(self) -> Agreement:
    """This island's part in the step after which all stop."""
    return self.peers.agreement

  @property
  def elastic(self) -> 'IslandMapper':
    """This one."""
    return self

  @property
  def prepares(self) -> bool:
    """Whether the others train already, and have not let this island in."""
    return self.peers.prepares

  @property
  def devices_per_worker(self) -> int:
    """The number of this island's devices."""
    return self.devices.devices_per_worker

  @property
  def form(self) -> Form:
    """How values lie where programs are cut."""
    return Form(self.devices)

  def sharding(self, shape: tuple[int, ...]) -> Sharding:
    """Returns how an array [1, ...] lies from step to step."""
    return self.devices.sharding(shape)

  def stack(self, tree: Any) -> Any:
    """Gives arrays of one worker a leading axis."""
    return self.devices.stack(tree)

  def compute(
    self, fn: Function, *args: Any, compiler_options: Any = None
  ) -> Any:
    """Returns the state that `fn(*args)` makes, see `Slices.compute`."""
    return self.devices.compute(fn, *args, compiler_options=compiler_options)

  def check(self) -> None:
    """Raises `ConfigError` if there are too few devices.

    Several processes must use all that they have.
    """
    needed, found = self.devices_per_worker, jax.device_count()
    if found < needed or (jax.process_count() > 1 and found > needed):
      raise ConfigError(
        f'config.mesh: an island of {needed} devices sees {found} '
        f'({jax.default_backend()}); change mesh.data or mesh.fsdp'
      )

  def gather(self, tree: Any) -> Any:
    """Gathers host arrays [..., 1] of all islands to [..., N], as bytes."""
    leaves, structure = jax.tree.flatten(tree)
    own = np.frombuffer(b''.join(x.tobytes() for x in leaves), np.uint8)
    ends = np.cumsum([x.nbytes for x in leaves])[:-1]
    rows = [np.split(each, ends) for each in self.peers.complete(_gather, own)]
    gathered = [
      np.concatenate([p.view(x.dtype).reshape(x.shape) for p in parts], -1)
      for x, parts in zip(leaves, zip(*rows, strict=True), strict=True)
    ]
    return structure.unflatten(gathered)

  def digests(self, digest: bytes) -> dict[str, bytes]:
    """Returns the digest that each island has of its program, by its name."""
    self.rounds.program = digest.hex()
    each = self.peers.complete(_gather, np.frombuffer(digest, np.uint8))
    return {
      f'island {name}': found.tobytes()
      for name, found in zip(self.peers.names, each, strict=True)
    }

  def choose(self, found: Iterator[pathlib.Path]) -> Choice:
    """Chooses the newest checkpoint that all have who were there at its step.

    The others get it from them. An island that prepares enters before. Of the
    beginning there is one only for the moment in which saving is rehearsed.

    Raises:
      RunError: if some have checkpoints, but there is no such one.
    """
    paths = {step: path for path in found if (step := int(path.name))}
    takers = {step: resuming.takers(path) for step, path in paths.items()}
    self.peers.enter()

    def pack(step):
      return checkpoints.packed(paths[step]) if paths else b''

    return self._begin(takers, pack)

  @property
  def admits(self) -> bool:
    """Whether islands wait for `welcome`, to come or to leave, and may."""
    return self.peers.admits and self.leases.may_enter

  def welcome(
    self, step: int, save: Callable[[], pathlib.Path], digest: bytes
  ) -> None:
    """Goes on with those who come, which begin with this island's checkpoint.

    Or with another one's: only one of them saves it, if somebody comes. They
    call `choose` and `digests`, as at every beginning of a run.

    Raises:
      Stopped: if this island leaves, as it was asked to.
    """

    def pack(_):
      folder = save()  # In all processes.
      return checkpoints.packed(folder) if processes.is_first() else b''

    self.peers.admit()
    self._begin({step: Takers(0)}, pack)
    self.digests(digest)

  def _begin(
    self, takers: dict[int, Takers], pack: Callable[[int], bytes]
  ) -> Choice:
    choice, copies = self.peers.complete(resuming.agree, takers, pack)
    self.rounds.begin(self.peers.slots, copies)
    return choice


def _gather(peers: Peers, message: np.ndarray) -> list[np.ndarray]:
  return peers.gather(message)
