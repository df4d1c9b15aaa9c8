"""The islands of a run as the training loop sees them: they join and leave."""

from collections.abc import Callable, Generator, Iterator, Mapping
import contextlib
import json
import pathlib
import time
from typing import Any
import zlib

import numpy as np

from selsync_jax.array_names import by_name
from selsync_jax.data.course import Course
from selsync_jax.data.leases import Reader
from selsync_jax.data.pace import Watch
from selsync_jax.data.protocol import Batch, Data
from selsync_jax.devices.mappers import Function
from selsync_jax.devices.slices import Slices
from selsync_jax.islands import resuming, rounds
from selsync_jax.islands.ahead import Ahead
from selsync_jax.islands.behind import Behind, steps_of_travel
from selsync_jax.islands.mapper import IslandMapper
from selsync_jax.islands.peers import Peers
from selsync_jax.islands.program import complete
from selsync_jax.islands.resuming import Takers
from selsync_jax.islands.rounds import Rounds
from selsync_jax.runs import checkpoints
from selsync_jax.runs.checkpoints import Choice
from selsync_jax.sync.budget import asks_travel, with_travel
from selsync_jax.sync.delay import Delayed
from selsync_jax.training.participants import Participants, refuse_odd
from selsync_jax.training.settings import Settings
from selsync_jax.training.setup import Setup

_OWN = 'config.mapper', 'config.mesh.'  # Islands may differ in these fields.
_ADVICE = 'restore what is missing, or start all of them over with --restart'


class IslandParticipants(Participants):
  """All islands, seen from one of them, which logs its `rounds`.

  Args:
    mapper: this island as a mapper.
    rounds: its log.
    speculates: whether it may begin a step before the vote of the step before
      is answered, see `ahead`. An island of several processes never does.
  """

  are_islands = True

  def __init__(
    self, mapper: IslandMapper, rounds: Rounds, speculates: bool = True
  ):
    super().__init__(mapper, mapper.peers.agreement)
    self._mapper = mapper
    self.peers, self.rounds = mapper.peers, rounds
    self.course = Course(mapper.workers)
    self.watch = Watch()
    self.speculates = speculates and mapper.processes == 1
    self._reader: Reader | None = None  # `None` in the last step.

  @property
  def prepares(self) -> bool:
    return self.peers.prepares

  @property
  def admits(self) -> bool:
    return self.peers.admits and self.course.leases.may_enter

  @property
  def _there(self) -> list[int]:
    """The slots of the islands that are members."""
    return [self.peers.slots.index(name) for name in self.peers.names]

  def choose(self, found: Iterator[pathlib.Path]) -> Choice:
    """Chooses the newest checkpoint that all islands of its step have.

    Other islands get a copy. An island that prepares is admitted first. The
    initial checkpoint exists only while the first save is tested, so it does
    not count.

    Raises:
      RunError: if some islands have checkpoints, but no such one exists.
    """
    paths = {step: path for path in found if (step := int(path.name))}
    own = {step: takers(path) for step, path in paths.items()}
    self.peers.enter()

    def pack(step):
      return checkpoints.packed(paths[step]) if paths else b''

    return self._begin(own, pack)

  def _digests(self, digest: bytes) -> dict[str, bytes]:
    """Returns each island's digest of its program, by the island's name."""
    self.rounds.program = digest.hex()
    each = complete(self.peers, Peers.gather, np.frombuffer(digest, np.uint8))
    return {
      f'island {name}': found.tobytes()
      for name, found in zip(self.peers.names, each, strict=True)
    }

  def compare(self, setup: Setup) -> None:
    self._setup = setup  # Islands that join later compare theirs with it.
    if self.mapper.workers > 1:
      refuse_odd(setup.identity, self._digests(setup.identity))

  def batches(
    self,
    data: Data,
    start: int,
    stop: int,
    record: Mapping[str, Any] | None = None,
  ) -> Iterator[Batch]:
    """Yields batches from this island's part, or from an absent island's part.

    Every island that is a member when a batch is requested takes the next step,
    or ends.
    """
    self.peers.reach(start)
    self.course.begin(start, record or {})
    reader, batch = Reader(data, stop), None
    for row in range(start, stop):
      # An island with a copied state has lost what its own state had learned.
      self.course.leases.lose(map(self.peers.slots.index, self.rounds.copied))
      self.rounds.readers = list(self.peers.names)
      self.course.next(self._there)
      batch = self.course.batch(reader, self.peers.slot, batch)
      self._reader = reader if row < stop - 1 else None
      yield batch

  def _upcoming(self) -> Batch | None:
    """Returns the batch of the next step, if it is known.

    There is no vote, and no need to know it, at a free pace.
    """
    cell = self.course.leases.expected(self.peers.slot)
    return self._reader.read(*cell) if self._reader and cell else None

  def train_step(self, setup: Setup) -> Function:
    averager = setup.strategy.averager
    step = setup.train_step()
    if self.speculates:
      step = Ahead(self._mapper, setup.worker_step(), self._upcoming)
    self.course.is_free = setup.config.pace == 'free'
    behind = None
    if isinstance(averager, Delayed):
      behind = Behind(self.peers, averager, self._mapper.form)
    self.peers.late = behind

    policy, shapes = setup.strategy.optimizer_state, setup.shapes
    moments = {'optimizer_state': shapes.moments} if policy.averages else {}
    self.peers.shows(by_name(shapes.shared | moments))

    def call(state, batch):
      began = time.perf_counter()
      if behind:
        behind.arrived = None
      state, metrics = step(state, batch)
      synced = bool(np.asarray(metrics['synced'])[0])
      if behind and (synced or self.prepares):
        behind.depart(state.averager_state)
      if not self.prepares:
        state = self._complete(state, synced, behind, began)
      return state, metrics

    return call

  def _complete(
    self, state: Any, synced: bool, behind: Behind | None, began: float
  ) -> Any:
    """Notes a step that has lasted since it `began`."""
    arrived = behind.arrived if behind else None
    averaged = self.course.complete(
      self._there, synced=synced, late=bool(behind), arrived=arrived
    )
    if averaged:
      self.peers.averaged()
    members, shares, travel = list(self.peers.names), None, None
    if self.course.is_free and averaged:
      shares = self._planned()
    elif behind and averaged and asks_travel(state.trigger_state):
      travel = steps_of_travel(self.peers, self.watch, behind.watch)
      if travel:
        triggered = with_travel(state.trigger_state, travel)
        state = state.replace(trigger_state=triggered)
    elif not (synced or self.peers.slot in self.course.rest):
      self.watch.add(time.perf_counter() - began)
    self.rounds.add(state, members, averaged, arrived, shares, travel)
    return state

  def _planned(self) -> list[int]:
    """Returns the shares of steps that each slot takes from now on."""
    own = np.array([self.watch.median])
    each = complete(self.peers, lambda peers: peers.share(own))
    seconds = [each_own.item() for each_own in each]
    self.course.plan(dict(zip(self._there, seconds, strict=True)))
    return [*self.course.shares]

  def divide(self, compute: Callable[[range, int], Any]) -> Any:
    while True:  # Until no island ends meanwhile.
      index, size = self.peers.index, self.peers.size
      found = compute(range(index, index + 1), size)
      if (self.peers.index, self.peers.size) == (index, size):
        return found

  def record(self, copied: bool = False) -> dict[str, Any]:
    """Returns the leases, the pace, and how many islands have the checkpoint.

    If one island has the state of all islands, the record also has its slot.
    """
    present = 1 if copied else self.peers.size
    original = {'original': self.peers.slot} if present == 1 else {}
    return self.course.to_json() | {'present': present, **original}

  def stops_after(self, step: int) -> bool:
    """Returns whether all stop after this step; an island may leave alone."""
    self.peers.reach(step)
    return super().stops_after(step)

  def stops_after_last(self, step: int) -> bool:
    """Ignores signals, because this island's end would end all islands."""
    return False

  def welcome(self, step: int, pack: Callable[[], bytes]) -> None:
    """Admits islands that join, and releases islands that leave.

    Only one island packs its state for joining islands. They call `choose` and
    `compare`, like islands at every start of a run.

    Raises:
      Stopped: if this island was asked to leave.
    """
    self.peers.admit()
    self._begin({step: Takers(0)}, lambda _: pack())
    self._digests(self._setup.digest)

  def _begin(
    self, takers: dict[int, Takers], pack: Callable[[int], bytes]
  ) -> Choice:
    chosen = complete(self.peers, resuming.agree, takers, pack, _ADVICE)
    self.rounds.begin(self.peers.slots, chosen.copies)
    return Choice(chosen.step, chosen.content)


def takers(path: pathlib.Path) -> Takers:
  """Returns the islands that share a checkpoint."""
  record = checkpoints.read_record(path)
  equal = json.dumps([record.get('leases'), record.get('pace')])
  line = zlib.crc32(equal.encode())
  present = record.get('present', record['workers'])
  return Takers(present, record.get('original', -1), line)


@contextlib.contextmanager
def joined(
  name: str,
  settings: Settings,
  workdir: pathlib.Path,
  agreed: Mapping[str, Any],
  join: Callable[..., Peers],
  restart: bool = False,
  speculates: bool = True,
) -> Generator[IslandParticipants]:
  """Joins the other islands, and leaves them when the context ends.

  Args:
    name: name of this island.
    settings: settings of the run.
    workdir: folder of this island's run.
    agreed: values that must be equal on all islands, by name.
    join: `joining.join` of the run that the island was invited to.
    restart: whether to ignore the slot that the island had before.
    speculates: see `IslandParticipants`.
  """
  alike = {k: v for k, v in agreed.items() if not k.startswith(_OWN)}
  slot = None if restart else rounds.slot(workdir, name)
  with join(name, alike, welcomes=True, slot=slot, say=print) as peers:
    config = settings.config
    mapper = IslandMapper(config.workers, peers, Slices(1, **config.mesh))
    yield IslandParticipants(mapper, Rounds(workdir), speculates)
