"""Islands that wait for each other until they can train together."""

from collections.abc import Mapping, Sequence

from selsync_jax.cluster.protocol.messages import Join, Known, Membership
from selsync_jax.cluster.protocol.seats import (
  check_run,
  FREE,
  Refusal,
  Seat,
  seated,
)


class Rendezvous:
  """Islands that have joined, by name, until they begin together.

  A new run begins when all islands have joined or, after a time, enough of
  them; others may join while they train. If some islands know a run of an
  earlier coordinator, they begin when all members of that run have joined. An
  island that was started again is left out, because it lacks the others' state.
  But while nothing has been exchanged, all are at the beginning.

  Args:
    islands: N, the expected number of islands.
    minimum: the least number that begins.
    slots: names of the run's islands, if they are known; see `seated`.

  Attributes:
    seats: the waiting islands, by name.
  """

  def __init__(self, islands: int, minimum: int, slots: Sequence[str] = ()):
    self.islands, self._minimum = islands, minimum
    self._slots = slots or [FREE] * islands
    self.seats: dict[str, Seat] = {}

  def add(self, seat: Seat) -> str:
    """Adds an island; a later process of the same name replaces an earlier one.

    Returns:
      A line about the island for the journal.

    Raises:
      Refusal: if the island does not belong here, or is too late.
    """
    join = seat.join
    check_run(join, self._others(join.name))
    there = len(self.seats.keys() | {join.name})
    words = f'has joined from {join.address}: {there} of {self.islands}'
    if join.known:
      words = 'has found the coordinator again'
      all_known = [join.known, *self._all_known]
      now = _newest(all_known)
      if (
        any(self._slots)
        or any(_contradict(join.known, known) for known in all_known)
        or not _is_of(seat, now)
      ):
        raise Refusal(
          f'the others continued without island {join.name}', 'lost'
        )
    else:
      self._check_slot(join.name)
    self.seats[join.name] = seat
    return words

  def _check_slot(self, name: str) -> None:
    """Raises `Refusal` if no slot is free for an island."""
    known = self._all_known
    slots = _newest(known).slots if known else self._slots
    new = self.seats.keys() - {name} - {*slots}
    if name not in slots and len(new) >= slots.count(FREE):
      seated(self.slots, name, None)

  def _others(self, name: str) -> Mapping[str, Join]:
    return {n: seat.join for n, seat in self.seats.items() if n != name}

  @property
  def _all_known(self) -> list[Known]:
    each = (seat.join.known for seat in self.seats.values())
    return [known for known in each if known]

  def met(self, is_late: bool = False) -> dict[Seat, Known | None] | None:
    """Returns the islands that begin, with their knowledge; `None` if none do.

    Args:
      is_late: whether to stop waiting for missing islands.
    """
    known = self._all_known
    is_complete = len(self.seats) == self.islands
    if not (known or is_complete or is_late):
      return None
    there = {**self.seats}
    if known:
      now = _newest(known)
      is_complete = self.seats.keys() >= {*now.islands}
      has_begun = any(each.heard for each in known)
      there = {
        name: seat
        for name, seat in self.seats.items()
        if (_is_of(seat, now) if seat.join.known else not has_begun)
        and name in now.islands
      }
    if len(there) < self._minimum or not (is_complete or is_late):
      return None
    return {there[name]: there[name].join.known for name in sorted(there)}

  @property
  def missing(self) -> list[str]:
    """Members of the run that have not reached the coordinator again."""
    known = self._all_known
    return sorted(set(_newest(known).islands) - {*self.seats}) if known else []

  @property
  def slots(self) -> Sequence[str]:
    """The slots of the run, with waiting islands in free ones."""
    known = self._all_known
    slots = [*(_newest(known).slots if known else self._slots)]
    new = sorted(self.seats.keys() - {*slots})
    free = {i for i, name in enumerate(slots) if name == FREE}
    wishes = ((name, self.seats[name].join.slot) for name in new)
    for name, slot in sorted(wishes, key=lambda wish: wish[1] is None):
      if free:  # Otherwise it is a stranger.
        at = slot if slot in free else min(free)
        free.remove(at)
        slots[at] = name
    return slots

  def describe(self, timeout: float) -> str:
    """Returns a line about the islands that have joined in this time."""
    names = ', '.join(sorted(self.seats))
    found = f'{len(self.seats)} of {self.islands} islands have joined'
    if known := self._all_known:
      found = (
        f'{len(self.seats)} of {len(_newest(known).islands)} islands have '
      )
      found += 'found the coordinator again'
    line = f'{found} within {timeout:g} s: {names}'
    if self._minimum < self.islands:
      line += f'; at least {self._minimum} are needed (--minimum)'
    return line


def _newest(known: Sequence[Known]) -> Membership:
  each = [one.membership for one in known]
  return max(each, key=lambda membership: membership.generation)


def _contradict(one: Known, other: Known) -> bool:
  """Returns whether two coordinators have separated these islands."""
  mine, its = one.membership, other.membership
  return mine.generation == its.generation and mine.identity != its.identity


def _is_of(seat: Seat, now: Membership) -> bool:
  """Returns whether a member's name refers to this process of an island.

  Another process may have taken its place while it was suspended.
  """
  return now.islands.get(seat.name) == seat.join.address
