"""Islands that wait for each other at a meeting point."""

from collections.abc import Iterable, Mapping
from typing import Any

from selsync_jax.islands.circle import Circle
from selsync_jax.islands.control import Member
from selsync_jax.islands.seat import Seat
from selsync_jax.islands.standing import newest
from selsync_jax.islands.standing import Standing
from selsync_jax.islands.status import status
from selsync_jax.runs.journal import Journal


class Gathering:
  """The islands that have joined, by name.

  Args:
    islands: N, the number of islands that are expected.
    minimum: see `Circle`.
    journal: see `Circle`.
    names: the only ones that may join, if that is known.
  """

  def __init__(
    self,
    islands: int,
    minimum: int,
    journal: Journal,
    names: Iterable[str] = (),
  ):
    self.islands, self.minimum, self._journal = islands, minimum, journal
    self._expected = set(names)
    self.is_again = bool(names)
    self._run = ''  # What the first one is about to run.
    self._seats: dict[str, Seat] = {}
    self.circle: Circle | None = None  # When all have joined.

  @property
  def seats(self) -> list[Seat]:
    """The seats in the order of their names, which that of indices is."""
    return [self._seats[name] for name in sorted(self._seats)]

  def status(self) -> dict[str, Any]:
    """Returns what `status.status` does, of these islands."""
    there = self.circle.there if self.circle else self.seats
    names = sorted(self._expected | self._seats.keys())
    totals = self._journal.totals
    return status(self.islands, self.minimum, names, there, totals)

  def add(self, seat: Seat) -> None:
    """Lets an island in; one that joins again takes the place that it had.

    Raises:
      ValueError: if it does not belong here.
    """
    member = seat.member
    self.check(member)
    self._seats[member.name] = seat
    self._run = member.run
    if len(self._seats) == self.islands:
      standing = Standing.first(sorted(self._seats))
      self._begin(dict.fromkeys(self.seats, standing))
    words = f'has joined from {member.address}: '
    words += f'{len(self._seats)} of {self.islands}'
    self._note('joined', member.name, words)

  def _begin(self, standings: Mapping[Seat, Standing]) -> None:
    self._expected = set(newest(standings.values()).slots)
    self.circle = Circle(standings, self.minimum, self._journal)

  def _note(self, kind: str, name: str, words: str) -> None:
    number = self.circle.number if self.circle else 0
    names = sorted(self._seats) if self.circle else []
    self._journal.add(kind, name, words, number, names)

  def close(self) -> None:
    """Waits no longer for those that are missing."""

  def check(self, member: Member) -> None:
    """Raises `ValueError` for an island that does not belong here."""
    others = sorted(self._seats.keys() - {member.name})
    if others and self._run != member.run:
      raise ValueError(
        f'island {member.name} would run something else than '
        f'{", ".join(others)}; give all islands the same code and config'
      )
    if self._expected and member.name not in self._expected:
      raise ValueError(
        f'island {member.name} is not one of '
        f'{", ".join(sorted(self._expected))}'
      )

  def remove(self, seat: Seat) -> None:
    """Forgets an island that waits no longer, unless all have joined."""
    if not self.circle and seat in self.seats:
      del self._seats[seat.member.name]
      self._journal.add('ended', seat.member.name, 'waits no longer')


class Reunion(Gathering):
  """The islands of a run that an earlier meeting point has served."""

  def __init__(self, islands: int, minimum: int, journal: Journal):
    super().__init__(islands, minimum, journal)
    self._standings: dict[Seat, Standing] = {}
    self._missed: set[str] = set()

  def find(self, seat: Seat, standing: Standing) -> None:
    """Lets an island in that comes back, or raises `ValueError`."""
    self.check(seat.member)
    name = seat.member.name
    for other in map(self._standings.__getitem__, self.seats):
      same = other.generation == standing.generation
      if same and other.circle != standing.circle:
        raise ValueError(f'the others went on without island {name}')
    self._seats[name], self._standings[seat] = seat, standing
    self._run = seat.member.run
    self._missed.discard(name)
    self._close_if_complete()
    self._note('joined', name, 'has found the meeting point again')

  def miss(self, name: str) -> None:
    """Waits no longer for an island that has been started again."""
    self._missed.add(name)
    self._close_if_complete()

  def close(self) -> None:
    """Lets those go on that are there, if they are enough."""
    names = self._newest.islands
    there = {name: self._seats[name] for name in names if name in self._seats}
    if self.circle or len(there) < self.minimum:
      return
    self._seats = there
    self._begin({seat: self._standings[seat] for seat in self.seats})
    for name in sorted(set(names) - there.keys()):
      self._note('ended', name, 'has not found the meeting point again')

  def _close_if_complete(self) -> None:
    there = self._seats.keys() | self._missed
    if self._seats and there.issuperset(self._newest.islands):
      self.close()

  @property
  def _newest(self) -> Standing:
    return newest(self._standings[seat] for seat in self.seats)
