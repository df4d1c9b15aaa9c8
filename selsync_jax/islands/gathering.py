"""Islands that wait for each other at a meeting point."""

from collections.abc import Sequence
import contextlib
from typing import Any

from selsync_jax.islands.circle import Circle
from selsync_jax.islands.control import Member
from selsync_jax.islands.journal import Journal
from selsync_jax.islands.seat import Seat
from selsync_jax.islands.standing import FREE, newest, seated, Standing
from selsync_jax.islands.status import status


class LateError(ValueError):
  """An error that the others have gone on without an island."""


class Gathering:
  """The islands that have joined, by name, until they go on together.

  Those of a new run do so when all are there or, after a time, enough of them;
  then others may come while they train. If some know a run, which an
  earlier meeting point has served, they do so when all have come that were in
  it. One that has been started again stays behind, as it is not where they are;
  but as long as nothing has been shared, all are at the beginning.

  Args:
    islands: N, the number of islands that are expected.
    minimum: see `Circle`.
    journal: see `Circle`.
    slots: the names of the run's islands, if they are known; see `seated`.
    grace: see `Circle`.
  """

  def __init__(
    self,
    islands: int,
    minimum: int,
    journal: Journal,
    slots: Sequence[str] = (),
    grace: float | None = None,
  ):
    self.islands, self._minimum, self._journal = islands, minimum, journal
    self._slots, self._grace = slots or [FREE] * islands, grace
    self._run = ''  # What the first one is about to run.
    self._seats: dict[str, Seat] = {}
    self.circle: Circle | None = None  # When they have met.

  @property
  def seats(self) -> list[Seat]:
    """The seats in the order of their names."""
    return [self._seats[name] for name in sorted(self._seats)]

  @property
  def slots(self) -> Sequence[str]:
    """The names of the run's islands, as far as they are known."""
    return self.circle.slots if self.circle else self._slots

  def again(self) -> 'Gathering':
    """Returns where the same islands meet when they have ended."""
    return Gathering(
      self.islands, self._minimum, self._journal, self.slots, self._grace
    )

  def status(self) -> dict[str, Any]:
    """Returns what `status.status` does, of these islands."""
    there = self.circle.there if self.circle else self.seats
    names = sorted({*self.slots, *self._seats} - {FREE})
    totals = self._journal.totals
    return status(self.islands, self._minimum, names, there, totals)

  def add(self, seat: Seat) -> None:
    """Lets an island in; one that joins again takes the place that it had.

    Raises:
      ValueError: if it does not belong here.
      LateError: if it is too late.
    """
    member, standing = seat.member, seat.standing
    self._check_run(member)
    words = f'has joined from {member.address}: '
    words += f'{len(self._seats.keys() | {member.name})} of {self.islands}'
    if standing:
      words = 'has found the meeting point again'
      known = self._standings
      if (
        any(self._slots)
        or any(map(standing.contradicts, known))
        or not _is_there(seat, newest([standing, *known]))
      ):
        raise LateError(f'the others went on without island {member.name}')
    else:
      self.check(member)
    self._seats[member.name], self._run = seat, member.run
    self._meet()
    self._note('joined', member.name, words)

  def close(self) -> None:
    """Waits no longer for those that are missing, if the others are enough."""
    self._meet(is_late=True)
    if self.circle:
      there = f'{len(self._seats)} of {self.islands} islands'
      self._journal.remark(f'the run goes on with {there}')

  def check(self, member: Member) -> None:
    """Raises `ValueError` for an island that does not belong here."""
    self._check_run(member)
    seated(self._seated(), member.name, member.slot)

  def _check_run(self, member: Member) -> None:
    others = sorted(self._seats.keys() - {member.name})
    if others and self._run != member.run:
      raise ValueError(
        f'island {member.name} would run something else than '
        f'{", ".join(others)}; give all islands the same code and config'
      )

  def remove(self, seat: Seat) -> None:
    """Forgets an island that waits no longer, unless they have met."""
    if not self.circle and seat in self.seats:
      del self._seats[seat.member.name]
      self._journal.add('ended', seat.member.name, 'waits no longer')

  @property
  def _standings(self) -> list[Standing]:
    return [seat.standing for seat in self.seats if seat.standing]

  def _meet(self, is_late: bool = False) -> None:
    """Lets those go on that can, if nobody is missing or it is late."""
    known = self._standings
    if known:
      now = newest(known)
      is_complete = self._seats.keys() >= set(now.islands)
    else:
      islands = {seat.member.name: seat.member.address for seat in self.seats}
      now = Standing.first(islands, self._seated())
      is_complete = len(self._seats) == self.islands
    has_begun = any(standing.heard for standing in known)
    there = {
      name: seat
      for name, seat in self._seats.items()
      if (_is_there(seat, now) if seat.standing else not has_begun)
      and name in now.islands
    }
    if len(there) < self._minimum or not (is_complete or is_late):
      return
    self._seats, self._slots = there, now.slots
    standings = {seat: seat.standing or now for seat in self.seats}
    self.circle = Circle(standings, self._minimum, self._journal, self._grace)
    for name in sorted(set(now.islands) - there.keys()):
      self._note('ended', name, 'has not found the meeting point again')

  def _seated(self) -> Sequence[str]:
    """Returns the slots with those that are there, as far as there are any."""
    known = self._standings
    slots = newest(known).slots if known else self.slots
    for seat in sorted(self.seats, key=lambda s: s.member.slot is None):
      with contextlib.suppress(ValueError):  # A stranger, among these.
        slots = seated(slots, seat.member.name, seat.member.slot)
    return slots

  def _note(self, kind: str, name: str, words: str) -> None:
    number = self.circle.number if self.circle else 0
    names = sorted(self._seats) if self.circle else []
    self._journal.add(kind, name, words, number, names)


def _is_there(seat: Seat, now: Standing) -> bool:
  """Returns whether it is this process that an island's name stands for.

  Another one may have taken its place while it was suspended.
  """
  return now.islands.get(seat.member.name) == seat.member.address
