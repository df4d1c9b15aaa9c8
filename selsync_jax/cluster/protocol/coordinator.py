"""The coordinator's side of the protocol; the coordinator holds no weights."""

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.messages import Join, Known, Membership
from selsync_jax.cluster.protocol.run import newest, Run
from selsync_jax.cluster.protocol.seats import (
  check_run,
  FREE,
  Refusal,
  Seat,
  seated,
)

ENDING = 5.0
"""Seconds until the end of an island has been noticed."""


class Outgoing(NamedTuple):
  """A message for some islands, by the indices of their connections."""

  numbers: Sequence[int]
  message: messages.Message


class Coordinator:
  """State machine of the coordinator.

  Events are `hear`, `lost` and `tick`; `outgoing` has the messages to send.
  The islands know everything that the coordinator knows: after a restart, it
  learns from their `Known` messages.

  A new run begins when all islands have joined or, after a time, enough of
  them; others may join while they train. If some islands know a run of an
  earlier coordinator, they begin when all members of that run have joined. An
  island that was started again is left out, because it lacks the others' state.
  But while nothing has been exchanged, all are at the beginning.

  Args:
    islands: N, the number of islands.
    minimum: the least number of islands that train.
    timeout: seconds for which an island waits for the others; then the
      islands that have joined begin, if they are enough.
    grace: seconds for which islands at a place, if they are enough to continue,
      wait for the others there; `None` sets no limit.
    identity: differs between coordinators.
    note: notes an event: its kind, an island, words, generation, and members.

  Attributes:
    outgoing: messages that the transport sends next.
  """

  _seat: ClassVar[type[Seat]] = Seat

  def __init__(
    self,
    islands: int,
    minimum: int,
    timeout: float,
    grace: float | None,
    identity: str,
    note: Callable[..., None],
  ):
    self.islands, self.minimum = islands, minimum
    self._timeout, self._grace = timeout, grace
    self._identity, self._note = identity, note
    self.outgoing: collections.deque[Outgoing] = collections.deque()
    self._seats: dict[int, Seat] = {}
    self._trying: dict[Seat, float] = {}  # Their names are taken until then.
    self._waiting: dict[str, Seat] = {}  # By name, until they begin.
    self._slots: Sequence[str] = [FREE] * islands  # See `seated`.
    self._run: Run | None = None
    self._now = 0.0

  def hear(self, number: int, message: messages.Message, now: float) -> None:
    """Handles a message on a connection."""
    self._now = now
    seat = self._seats.get(number)
    if isinstance(message, messages.Join) and not seat:
      seat = self._seats[number] = self._seat(number, message, now)
      self._try(seat)
    elif seat:
      seat.heard_at = now
      if isinstance(message, messages.Alive):
        seat.note(message, now)
      run, kind = self._run, type(message)
      if kind is messages.Failed and not (run and seat in run.there):
        self.lost(number, now)
      elif run:
        if kind is messages.Arrived and run.is_over and seat in run.coming:
          self._again([seat])  # The others have ended before they admitted it.
        run.hear(seat, message, now)
        self._look_over()

  def lost(self, number: int, now: float) -> None:
    """Notes that a connection is lost."""
    self._now = now
    if seat := self._seats.pop(number, None):
      self._trying.pop(seat, None)
      self._forget(seat)
      if self._run:
        self._run.lost(seat)
        self._look_over()

  def tick(self, now: float) -> None:
    """Ends silent and late islands, and sends signs of life."""
    self._now = now
    for seat in [*self._trying]:
      self._try(seat)
    for seat in [*self._waiting.values()]:
      if now - seat.heard_at > seat.join.timeout:
        self._forget(seat)
        self._refuse(seat, Refusal(f'{seat.title} {seat.silence}', 'lost'))
    waiting = self._waiting.values()
    if any(seat.deadline <= now for seat in waiting if seat.deadline):
      self._stop_waiting()
    if self._run:
      self._run.tick(now)
      self._look_over()
    for seat in self._seats.values():
      if now - seat.said_at >= seat.join.timeout / 10:
        waits = self._run.generation.waits(seat, now) if self._run else ''
        self._say([seat], messages.Sign(waits))

  def _try(self, seat: Seat) -> None:
    """Lets an island join, as soon as no other island has its name."""
    run, join = self._run, seat.join
    deadline = self._trying.setdefault(seat, self._now + ENDING)
    try:
      self._check_newest(seat)
      if join.known or not run or run.is_over:
        del self._trying[seat]
        self._gather(seat)
        return
      check_run(join, {each.name: each.join for each in run.members})
      seated(run.slots, join.name, join.slot)
      line = f'island {join.name} is there already'
      if not join.welcomes:
        run.end_if_silent(join.name, self._now)
        line = 'the others train; their loop admits no island, so '
        line += f'{join.name} may join when they have ended'
      elif run.receive(seat, self._now):
        del self._trying[seat]
      if seat in self._trying and deadline <= self._now:
        raise Refusal(line)
    except Refusal as refusal:
      self._refuse(seat, refusal)

  def _check_newest(self, seat: Seat) -> None:
    """Raises `Refusal` if a later connection has the island's name.

    After an island has connected again, the last bytes of its earlier
    connection may still arrive.
    """
    for other in self._seats.values():
      if other.name == seat.name and other.number > seat.number:
        raise Refusal(f'another island has joined as {seat.name}')

  def _gather(self, seat: Seat) -> None:
    """Lets an island wait for the others, or begin if none is missing."""
    run, join = self._run, seat.join
    if run and run.is_over and not join.known:
      if join.welcomes and run.has_finished_without(join):
        raise Refusal('the others have finished this run', 'finished')
    elif run:
      raise _late(join.name)
    if run and not self._waiting:
      self._slots = run.slots
    words = self._check_waiting(join)
    other = self._waiting.get(join.name)
    self._waiting[join.name] = seat
    if other:
      line = f'another island has joined as {join.name}'
      self._refuse(other, Refusal(line))
    seat.deadline = self._now + (join.timeout if join.known else self._timeout)
    self._meet(seat, words)

  def _check_waiting(self, join: Join) -> str:
    """Returns a line for the journal about an island that joins the others.

    Raises:
      Refusal: if the island does not belong here, or is too late.
    """
    others = {n: s.join for n, s in self._waiting.items() if n != join.name}
    check_run(join, others)
    if not join.known:
      seated(self._filled_slots, join.name, None)  # Raises if none is free.
      count = f'{len(others) + 1} of {self.islands}'
      return f'has joined from {join.address}: {count}'
    known = [join.known, *self._known]
    if (
      any(self._slots)
      or any(_contradict(join.known, other) for other in known)
      or not _is_of(join, newest(known))
    ):
      raise _late(join.name)
    return 'has found the coordinator again'

  @property
  def _known(self) -> list[Known]:
    """The knowledge of waiting islands about an earlier coordinator's run."""
    each = (seat.join.known for seat in self._waiting.values())
    return [known for known in each if known]

  @property
  def _filled_slots(self) -> Sequence[str]:
    """The slots of the run, with waiting islands in free ones."""
    before = newest(self._known)
    slots = [*(before.slots if before else self._slots)]
    new = sorted(self._waiting.keys() - {*slots})
    free = {i for i, name in enumerate(slots) if name == FREE}
    wishes = ((name, self._waiting[name].join.slot) for name in new)
    for name, slot in sorted(wishes, key=lambda wish: wish[1] is None):
      if free:  # Otherwise it is a stranger.
        at = slot if slot in free else min(free)
        free.remove(at)
        slots[at] = name
    return slots

  def _met(self, is_late: bool) -> dict[Seat, Known | None] | None:
    """Returns the islands that begin, with their knowledge; `None` if none do.

    If it `is_late`, they wait for missing islands no longer.
    """
    there = {**self._waiting}
    is_complete = len(there) == self.islands
    if before := newest(self._known):
      is_complete = there.keys() >= {*before.islands}
      has_begun = any(each.heard for each in self._known)
      there = {
        name: seat
        for name, seat in there.items()
        if (_is_of(seat.join, before) if seat.join.known else not has_begun)
        and name in before.islands
      }
    if len(there) < self.minimum or not (is_complete or is_late):
      return None
    return {there[name]: there[name].join.known for name in sorted(there)}

  def _meet(self, last: Seat, words: str, is_late: bool = False) -> bool:
    """Begins a run with waiting islands, if possible; returns whether it did.

    The words say how the `last` of them has joined.
    """
    there = self._met(is_late)
    if there is None:
      if not is_late:
        self._note('joined', last.name, words)
      return False
    slots, before = self._filled_slots, newest(self._known)
    members = {*before.islands} if before else set[str]()
    missing = sorted(members - self._waiting.keys())
    left = [seat for seat in self._waiting.values() if seat not in there]
    self._waiting, self._slots = {}, slots
    self._run = run = Run(
      there,
      slots,
      self.minimum,
      f'{self._identity}-{last.number}',
      self._say,
      self._note,
      self._grace,
    )
    names = [seat.name for seat in run.members]
    self._note('joined', last.name, words, run.generation.number, names)
    for name in missing:
      fate = 'has not found the coordinator again'
      self._note('ended', name, fate, run.generation.number, names)
    self._again(seat for seat in left if not seat.join.known)
    for seat in left:
      if seat.join.known:  # It had not heard of its end.
        self._refuse(seat, _late(seat.name))
    return True

  def _stop_waiting(self) -> None:
    """Begins with waiting islands, if they are enough.

    Otherwise, refuses the islands whose waiting time is over.
    """
    seats = [*self._waiting.values()]
    words = f'and the others begin: {len(seats)} of {self.islands} islands'
    if self._meet(seats[-1], words, is_late=True):
      return
    for seat in seats:
      if seat.deadline is not None and seat.deadline <= self._now:
        known = seat.join.known
        line = self._describe(seat.join.timeout if known else self._timeout)
        self._forget(seat)
        self._refuse(seat, Refusal(line))

  def _describe(self, timeout: float) -> str:
    """Returns a line about the islands that have joined in this time."""
    names = ', '.join(sorted(self._waiting))
    expected, fate = self.islands, 'joined'
    if before := newest(self._known):
      expected = len(before.islands)
      fate = 'found the coordinator again'
    line = (
      f'{len(self._waiting)} of {expected} islands have {fate} within '
      f'{timeout:g} s: {names}'
    )
    if self.minimum < self.islands:
      line += f'; at least {self.minimum} are needed (--minimum)'
    return line

  def _again(self, seats: Iterable[Seat]) -> None:
    """Lets islands join another run than the one they waited for."""
    for seat in seats:
      if self._run and seat in self._run.coming:
        self._run.coming.remove(seat)
      self._try(seat)

  def _forget(self, seat: Seat) -> None:
    """Stops expecting an island that waits for the others."""
    if self._waiting.get(seat.name) is seat:
      del self._waiting[seat.name]
      self._note('ended', seat.name, 'waits no longer')

  def _look_over(self) -> None:
    """Lets islands that waited for admission rejoin, if a run is over."""
    run = self._run
    if run and run.is_over:
      self._again([seat for seat in run.coming if seat.is_prepared])

  def _refuse(self, seat: Seat, refusal: Refusal) -> None:
    self._trying.pop(seat, None)
    self._seats.pop(seat.number, None)
    ended = messages.Ended(str(refusal), refusal.kind)
    self.outgoing.append(Outgoing([seat.number], ended))

  def _say(self, seats: Iterable[Seat], message: messages.Message) -> None:
    seats = [*seats]
    for seat in seats:
      seat.said_at = self._now
      if isinstance(message, messages.Ended):
        self._seats.pop(seat.number, None)
    if seats:
      self.outgoing.append(Outgoing([s.number for s in seats], message))

  @property
  def present(self) -> list[Seat]:
    """Connected islands: in the run or waiting."""
    there = self._run.there if self._run else []
    return [*there, *self._waiting.values()]

  def status(self, now: float) -> dict[str, dict[str, Any]]:
    """Returns each known island's activity, by name; empty if it is away."""
    run = self._run
    slots = run.slots if run and not run.is_over else self._filled_slots
    found: dict[str, dict[str, Any]] = {
      name: {} for name in {*slots, *self._waiting} - {FREE}
    }
    for seat in self.present:
      trains = run and not run.is_over and seat in run.members
      state = 'prepares' if run and seat in run.coming else 'waits'
      row = {'state': 'trains' if trains else state, **seat.account(now)}
      if trains and run and (waits := run.generation.waits(seat, now)):
        row['waits'] = waits
      found[seat.name] = row
    return dict(sorted(found.items()))


def _late(name: str) -> Refusal:
  return Refusal(f'the others continued without island {name}', 'lost')


def _contradict(one: Known, other: Known) -> bool:
  """Returns whether two coordinators have separated these islands."""
  mine, its = one.membership, other.membership
  return mine.generation == its.generation and mine.identity != its.identity


def _is_of(join: Join, now: Membership | None) -> bool:
  """Returns whether a member's name refers to this process of an island.

  Another process may have taken its place while it was suspended.
  """
  return now is not None and now.islands.get(join.name) == join.address
