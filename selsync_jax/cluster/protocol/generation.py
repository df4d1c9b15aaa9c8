"""A generation: islands that train together, and the places where they are."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from selsync_jax.cluster.protocol.messages import Accused, Arrived, Key, Place
from selsync_jax.cluster.protocol.seats import Seat

WAITING = 5.0
"""Seconds after which an island is told for whom it waits."""

CHANNELS = 8
"""The most channels of an island."""

ODD = 1.0
"""Seconds in which other islands may report a wrong message, too."""


class Arrivals(NamedTuple):
  """The islands that have arrived at one place.

  Attributes:
    bodies: vote of each island, once it is known.
    times: time of each island's arrival.
    groups: islands by place; places in a group must fit each other.
  """

  bodies: dict[Seat, bytes]
  times: dict[Seat, float]
  groups: list[tuple[Place, list[Seat]]]


class Generation:
  """Islands that train together, until one of them ends or others join.

  Whatever is incomplete then is void.

  Attributes:
    number: index of the generation.
    members: the islands, in the order of their slots.
  """

  def __init__(self, number: int, members: Sequence[Seat]):
    self.number, self.members = number, members
    self._there = {*members}
    self._open: dict[Key, Arrivals] = {}
    self._accused: dict[tuple[str, str], str] = {}  # By accuser and accused.
    self._judged_at = 0.0
    for seat in members:
      seat.began, seat.at = None, {}

  def __contains__(self, seat: Seat) -> bool:
    return seat in self._there

  def arrive(self, seat: Seat, said: Arrived, now: float) -> str:
    """Notes that a member has arrived; returns its fate if that is wrong."""
    place = said.place
    before = seat.at.get(place.channel)
    skipped = place.count - (before.count if before else 0)
    if skipped not in (0, 1) or len(seat.at) > CHANNELS:
      return f'comes out of order to {place}'
    if said.body and not place.takes(said.body):
      return f'sends a vote of a wrong length at {place}'
    seat.at[place.channel] = place
    seat.step(place.generation, place.step or 0)
    arrivals = self._open.setdefault(place.key, Arrivals({}, {}, []))
    if said.body is not None:
      arrivals.bodies[seat] = said.body
    if seat not in arrivals.times:  # Otherwise its vote follows.
      arrivals.times[seat] = now
      fitting = (g for other, g in arrivals.groups if other.fits(place))
      if group := next(fitting, None):
        group.append(seat)
      else:
        arrivals.groups.append((place, [seat]))
    return ''

  def apart(self, key: Key) -> tuple[set[Seat], str]:
    """Returns the members that end because places differ, and the reason.

    Most islands continue, if they agree; the others end.
    """
    _, times, groups = self._open[key]
    most = max((group for _, group in groups), key=len)
    agree = 2 * len(most) > len(self.members)
    if len(groups) == 1 or not (agree or len(times) == len(self.members)):
      return set(), ''
    places = sorted(
      f'{_names(group)} {"is" if len(group) == 1 else "are"} at {place}'
      for place, group in groups
    )
    line = f'the islands have come to different places: {"; ".join(places)}'
    return {*times}.difference(most if agree else ()), line

  def completed(self, key: Key) -> tuple[Place, list[bytes]] | None:
    """Returns the place and the votes, once all have arrived; only once."""
    bodies, _, groups = self._open[key]
    if len(groups) > 1 or len(bodies) < len(self.members):
      return None
    del self._open[key]
    return groups[0][0], [bodies[seat] for seat in self.members]

  def waits(self, seat: Seat, now: float) -> str:
    """Returns a line about the wait of an island, if it waits."""
    for (_, channel, _), arrivals in self._open.items():
      seconds = now - arrivals.times.get(seat, now)
      if seconds > WAITING:
        missing = [each for each in self.members if each not in arrivals.times]
        if missing:
          place = seat.at[channel]
          return f'waits for {_names(missing)} at {place}, {seconds:.0f} s'
    return ''

  def late(self, minimum: int, grace: float, now: float) -> list[Seat]:
    """Returns islands for which enough others have waited too long.

    No island is late that receives something, or has not taken its first step.
    """
    for (_, channel, _), arrivals in self._open.items():
      if channel or len(arrivals.times) < minimum:
        continue
      since = sorted(arrivals.times.values())[minimum - 1]
      if now - since > grace:
        return [
          seat
          for seat in self.members
          if seat not in arrivals.times
          and not (seat.at.get('') and seat.at[''].kind == 'average')
          and seat.began not in (None, seat.done.step)
        ]
    return []

  def accuse(self, seat: Seat, said: Accused, now: float) -> None:
    """Notes an accusation, if both islands report being at the place."""
    generation, channel, count = said.key
    there = {
      each.name
      for each in self.members
      if channel in each.at and each.at[channel].count >= count
    }
    if generation != self.number or not there >= {seat.name, said.name}:
      return
    if not self._accused:  # Others may accuse the same island later.
      timeout = seat.join.timeout
      self._judged_at = now + (min(ODD, timeout) if said.why else timeout)
    self._accused[seat.name, said.name] = said.why

  def acquit(self, seat: Seat, name: str) -> None:
    """Withdraws an accusation."""
    self._accused.pop((seat.name, name), None)

  def accused(self, now: float) -> Mapping[tuple[str, str], str]:
    """Returns accusations that must be judged now; each of them only once."""
    if now < self._judged_at:
      return {}
    found, self._accused = self._accused, {}
    return found


def _names(seats: Iterable[Seat]) -> str:
  names = sorted(seat.name for seat in seats)
  return ', '.join(names[:3]) + ', ...' * (len(names) > 3)
