"""The coordinator's side of the protocol; the coordinator holds no weights."""

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.rendezvous import Rendezvous
from selsync_jax.cluster.protocol.run import Run
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
    self._rendezvous = self._new()
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
      if isinstance(message, messages.Failed) and not self._serves(seat):
        self.lost(number, now)
      elif self._run:
        if isinstance(message, messages.Arrived) and self._is_behind(seat):
          self._again([seat])  # The others have ended before they admitted it.
        self._run.hear(seat, message, now)
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
    waiting = [*self._rendezvous.seats.values()]
    for seat in waiting:
      if now - seat.heard_at > seat.join.timeout:
        self._forget(seat)
        self._refuse(seat, Refusal(f'{seat.title} {seat.silence}', 'lost'))
    waiting = [*self._rendezvous.seats.values()]
    if any(seat.deadline <= now for seat in waiting if seat.deadline):
      self._stop_waiting()
    if self._run:
      self._run.tick(now)
      self._look_over()
    for seat in self._seats.values():
      if now - seat.said_at >= seat.join.timeout / 10:
        waits = self._run.waits(seat, now) if self._run else ''
        self._say([seat], messages.Sign(waits))

  def _new(self, slots: Sequence[str] = ()) -> Rendezvous:
    return Rendezvous(self.islands, self.minimum, slots)

  def _serves(self, seat: Seat) -> bool:
    return bool(self._run and seat in self._run.there)

  def _is_behind(self, seat: Seat) -> bool:
    """Returns whether an island waits to join a run that is over."""
    return bool(self._run and self._run.is_over and seat in self._run.coming)

  def _try(self, seat: Seat) -> None:
    """Lets an island join, as soon as no other island has its name."""
    run, join = self._run, seat.join
    deadline = self._trying.setdefault(seat, self._now + ENDING)
    try:
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

  def _gather(self, seat: Seat) -> None:
    """Lets an island wait for the others, or begin if none is missing."""
    run, join = self._run, seat.join
    if run and run.is_over and not join.known:
      if join.welcomes and run.has_finished_without(join):
        raise Refusal('the others have finished this run', 'finished')
    elif run:
      raise _late(join.name)
    if run and not self._rendezvous.seats:
      self._rendezvous = self._new(run.slots)
    other = self._rendezvous.seats.get(join.name)
    words = self._rendezvous.add(seat)
    if other:
      line = f'another island has joined as {join.name}'
      self._refuse(other, Refusal(line))
    seat.deadline = self._now + (join.timeout if join.known else self._timeout)
    self._meet(seat, words)

  def _meet(self, last: Seat, words: str, is_late: bool = False) -> bool:
    """Begins a run with waiting islands, if possible; returns whether it did.

    Args:
      last: the island that has joined last.
      words: description of its joining, to note.
      is_late: whether to stop waiting for missing islands.
    """
    waiting = self._rendezvous
    there = waiting.met(is_late)
    if there is None:
      if not is_late:
        self._note('joined', last.name, words)
      return False
    slots, missing = waiting.slots, waiting.missing
    left = [seat for seat in waiting.seats.values() if seat not in there]
    self._rendezvous = self._new(slots)
    self._run = run = Run(
      there,
      slots,
      self.minimum,
      f'{self._identity}-{last.number}',
      self._say,
      self._note,
      self._grace,
      self._now,
    )
    names = [seat.name for seat in run.members]
    self._note('joined', last.name, words, run.number, names)
    for name in missing:
      fate = 'has not found the coordinator again'
      self._note('ended', name, fate, run.number, names)
    self._again(seat for seat in left if not seat.join.known)
    for seat in left:
      if seat.join.known:  # It had not heard of its end.
        self._refuse(seat, _late(seat.name))
    return True

  def _stop_waiting(self) -> None:
    """Begins with waiting islands, if they are enough.

    Otherwise, refuses the islands whose waiting time is over.
    """
    waiting = self._rendezvous
    seats = [*waiting.seats.values()]
    words = f'and the others begin: {len(seats)} of {self.islands} islands'
    if self._meet(seats[-1], words, is_late=True):
      return
    for seat in seats:
      if seat.deadline is not None and seat.deadline <= self._now:
        known = seat.join.known
        line = waiting.describe(seat.join.timeout if known else self._timeout)
        self._forget(seat)
        self._refuse(seat, Refusal(line))

  def _again(self, seats: Iterable[Seat]) -> None:
    """Lets islands join another run than the one they waited for."""
    for seat in seats:
      if self._run and seat in self._run.coming:
        self._run.coming.remove(seat)
      self._try(seat)

  def _forget(self, seat: Seat) -> None:
    """Stops expecting an island that waits for the others."""
    if self._rendezvous.seats.get(seat.name) is seat:
      del self._rendezvous.seats[seat.name]
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
    run = self._run
    there = run.there if run else []
    return [*there, *self._rendezvous.seats.values()]

  def status(self, now: float) -> dict[str, dict[str, Any]]:
    """Returns each known island's activity, by name; empty if it is away."""
    run = self._run
    slots = run.slots if run and not run.is_over else self._rendezvous.slots
    found: dict[str, dict[str, Any]] = {
      name: {} for name in sorted({*slots, *self._rendezvous.seats} - {FREE})
    }
    for seat in self.present:
      trains = run and not run.is_over and seat in run.members
      state = 'prepares' if run and seat in run.coming else 'waits'
      row = {'state': 'trains' if trains else state, **seat.account(now)}
      if trains and run and (waits := run.waits(seat, now)):
        row['waits'] = waits
      found[seat.name] = row
    return dict(sorted(found.items()))


def _late(name: str) -> Refusal:
  return Refusal(f'the others continued without island {name}', 'lost')
