"""A run, seen by its coordinator: the members, and the place of each one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from selsync_jax.cluster.protocol import accusations, messages
from selsync_jax.cluster.protocol.messages import Arrived, Key, Known, Place
from selsync_jax.cluster.protocol.seats import (
  FAILED,
  FREE,
  GONE,
  in_order,
  LEFT,
  Seat,
  seated,
  STOPPED,
)

SILENT = 2.0
"""Seconds of silence after which another process may take over a name."""

ASKING = 1.0
"""Seconds from an island's request to stop until its release.

A person who ends a whole run asks all islands, but not at the same moment.
"""

PARTING = 20.0
"""Seconds in which a released island may hand over its work.

Then it leaves anyway. Schedulers usually kill a process after 30.
"""

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


class Run:
  """Islands that train together, and their transitions when some end.

  Islands that train together are a generation. When one ends, the others form
  the next generation, or all end if too few are left. One that joins later
  first prepares, and is in the next generation as soon as it and the others are
  ready. An island that is asked to stop leaves, or all stop after the same step
  if too few would be left. All islands hear all events in the same order.

  The arguments are the coordinator's. An island comes with its knowledge, if
  the run is older than this coordinator.

  Attributes:
    number: index of the generation.
    members: the islands that train.
    coming: islands that prepare.
    is_over: whether all members have left or ended.
    has_finished: whether the run is complete.
  """

  def __init__(
    self,
    seats: Mapping[Seat, Known | None],
    slots: Sequence[str],
    minimum: int,
    identity: str,
    say: Callable[[Iterable[Seat], messages.Message], None],
    note: Callable[..., None],
    grace: float | None,
    now: float,
  ):
    self._minimum, self._identity = minimum, identity
    self._say, self._note_, self._grace = say, note, grace
    each = [known for known in seats.values() if known]
    last = max((k.membership for k in each), key=_index, default=None)
    self.slots = slots
    self._known = {*slots} - {FREE}  # Names that have trained.
    self.coming: list[Seat] = []
    self._asking: dict[Seat, float] = {}  # Since when islands ask to stop.
    self._parting: set[Seat] = set()  # Asking islands that are released.
    # Steps that islands have reached, by name, once all are about to stop.
    self._reached: dict[str, int] | None = None
    self.is_over = self.has_finished = False
    self.number = self._admissions = 0
    self._admits = False
    if last:
      self.number, self._admissions = last.generation, last.admissions
      self._admits = any(k.admits for k in each if k.membership == last)
    self._strikes: set[str] = set()  # Accusers that were believed once.
    for seat, known in seats.items():
      for answer in missed(known, each) if known else ():
        say([seat], answer)
    self._begin(seats)
    self._continue_stopping(each)

  @property
  def there(self) -> Sequence[Seat]:
    """Islands that train or prepare; none when all have ended."""
    return [] if self.is_over else [*self.members, *self.coming]

  def _has(self, seat: Seat) -> bool:
    return not self.is_over and (seat in self._there or seat in self.coming)

  def tick(self, now: float) -> None:
    """Ends silent and late islands, and takes other actions that are due."""
    if self._accused and now >= self._judging_at:
      self._judge()
    for seat, since in self._asking.items():
      if now - since >= ASKING:
        self._release(seat, now - since)
    for seat in self.there:
      if now - seat.heard_at > seat.join.timeout:
        self._end({seat: seat.silence}, 'lost')
    if self._grace is not None:
      late = f'is more than {self._grace:g} s late'
      if found := self._late(self._grace, now):
        self._end(dict.fromkeys(found, late), 'lost')

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

  def _late(self, grace: float, now: float) -> list[Seat]:
    """Returns islands for which enough others have waited too long."""
    if self.is_over:
      return []
    for (_, channel, _), arrivals in self._open.items():
      if channel or len(arrivals.times) < self._minimum:
        continue
      since = sorted(arrivals.times.values())[self._minimum - 1]
      if now - since > grace:
        return [
          seat
          for seat in self.members
          if seat not in arrivals.times and self._may_be_late(seat)
        ]
    return []

  def _may_be_late(self, seat: Seat) -> bool:
    """Returns whether an island receives nothing and is past its first step."""
    at = seat.at.get('')
    receives = at and at.kind == 'average'
    return not receives and seat.began not in (None, seat.done.step)

  def has_finished_without(self, join: messages.Join) -> bool:
    """Returns whether the run has finished while an island was away."""
    there = {seat.name: seat.join for seat in self.members}
    others = [*there.values()]
    return (
      self.has_finished and join.name not in there and join.run == others[0].run
    )

  def receive(self, seat: Seat, now: float) -> bool:
    """Lets an island prepare that joins late or rejoins.

    Returns:
      Whether no other island has its name; otherwise the other must end first.

    Raises:
      Refusal: if there is no slot for it.
    """
    self.end_if_silent(seat.name, now)
    if seat.name in [each.name for each in self.there]:
      return False
    how = 'has rejoined' if seat.name in self.slots else 'has joined'
    self.slots = seated(self.slots, seat.name, seat.join.slot)
    self.coming.append(seat)
    self._note('returned', seat, f'{how} from {seat.join.address}')
    self._say([seat], self._membership(0, [*self.members, seat]))
    return True

  def end_if_silent(self, name: str, now: float) -> None:
    """Ends a silent island whose name another process wants to take."""
    for seat in self.there:
      if seat.name == name and now - seat.heard_at > SILENT:
        self._end({seat: 'is replaced'})

  def lost(self, seat: Seat) -> None:
    """Ends an island whose connection is lost."""
    self._end({seat: GONE})

  def hear(self, seat: Seat, message: messages.Message, now: float) -> None:
    """Handles a message of an island."""
    if not self._has(seat):
      return  # It has not yet heard of its end.
    match message:
      case Arrived():
        self._arrive(seat, message, now)
      case messages.Alive(generation, step):
        if generation == self.number:
          seat.step(generation, step)
      case messages.Accused(key, name, why):
        self._accuse(seat, key, name, why, now)
      case messages.Acquitted(name):
        self._accused.pop((seat.name, name), None)
      case messages.Stop():
        self._asked(seat, now)
      case messages.Reached(step):
        if self._reached is not None:
          self._reached[seat.name] = step
          self._settle_last()
      case messages.Failed(why, code):
        fate = FAILED if code == 1 else STOPPED
        self._end({seat: f'{fate}: {why}' if why else fate}, code=code)

  def _begin(self, seats: Iterable[Seat]) -> None:
    """Begins a generation; incomplete work of the one before is void."""
    self.members = in_order(seats, self.slots)
    self._there = {*self.members}
    self.number += 1
    self._open: dict[Key, Arrivals] = {}
    self._known |= {seat.name for seat in self.members}
    for seat in self.members:
      seat.began, seat.at = None, {}
    self._accused: dict[tuple[str, str], str] = {}  # By accuser and accused.
    self._judging_at = 0.0
    self._say(self.members, self._membership(self.number, self.members))

  def _membership(
    self, number: int, seats: Iterable[Seat]
  ) -> messages.Membership:
    there = in_order(seats, self.slots)
    known = self._known | {seat.name for seat in there}
    return messages.Membership(
      number,
      self._identity,
      {seat.name: seat.join.address for seat in there},
      [name if name in known else FREE for name in self.slots],
      self._admissions,
    )

  @property
  def _prepared(self) -> list[Seat]:
    """Islands that wait to be admitted."""
    return [seat for seat in self.coming if seat.is_prepared]

  def _arrive(self, seat: Seat, said: Arrived, now: float) -> None:
    place = said.place
    if place.kind == 'enter' and seat in self.coming:
      seat.is_prepared = True
    if place.generation != self.number or seat not in self._there:
      return  # It has not yet heard of the new generation.
    before = seat.at.get(place.channel)
    skipped = place.count - (before.count if before else 0)
    if skipped not in (0, 1) or len(seat.at) > CHANNELS:
      self._end({seat: f'comes out of order to {place}'})
      return
    if said.body and not place.takes(said.body):
      self._end({seat: f'sends a vote of a wrong length at {place}'})
      return
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
    if not self._part_ways(arrivals):
      self._complete(place.key, arrivals)

  def _part_ways(self, arrivals: Arrivals) -> bool:
    """Ends islands at odd places; returns whether places differ.

    Most islands continue, if they agree; the others end.
    """
    if len(arrivals.groups) == 1:
      return False
    most = max((group for _, group in arrivals.groups), key=len)
    agree = 2 * len(most) > len(self.members)
    if agree or len(arrivals.times) == len(self.members):
      places = sorted(
        f'{_names(group)} {"is" if len(group) == 1 else "are"} at {place}'
        for place, group in arrivals.groups
      )
      line = f'the islands have come to different places: {"; ".join(places)}'
      odd = {*arrivals.times}.difference(most if agree else ())
      self._end(dict.fromkeys(odd, 'is at another place'), 'apart', line)
    return True

  def _complete(self, key: Key, arrivals: Arrivals) -> None:
    """Answers at a place where all have arrived."""
    if len(arrivals.bodies) < len(self.members):
      return
    bodies = [arrivals.bodies[seat] for seat in self.members]
    del self._open[key]
    place, _ = arrivals.groups[0]
    if place.kind == 'admit':
      self._admit()
    elif place.kind != 'average':
      wait = self._prepared or self._parting.intersection(self.members)
      leaves = place.kind == 'leave'
      admits = bool(wait) and not (
        self._stops or self._admits or place.channel or leaves
      )
      self._admits |= admits
      body = messages.fold(place, bodies)
      self._say(self.members, messages.Answer(key, admits, body))
      if leaves:
        self.is_over, self.has_finished = True, any(bodies)
        kind = 'finished' if self.has_finished else 'left'
        for seat in self.members:
          self._note(kind, seat, LEFT)

  def _admit(self) -> None:
    """Begins a generation with joining islands, and without leaving ones.

    Does nothing if all are about to stop.
    """
    self._admits = False
    self._admissions += 1
    gone = self._parting.intersection(self.members)
    if gone and not self._may_leave:
      self._ask_all_to_stop()
    new = self._prepared
    if self._stops:
      new, gone = [], set()
    self.coming = [each for each in self.coming if each not in new]
    self._say(gone, messages.Ended('', 'left'))
    self._begin({*self.members, *new} - gone)
    for seat in gone:
      self._note('left', seat, LEFT)
    for seat in new:
      self._note('admitted', seat, 'trains with the others')

  def _accuse(
    self, seat: Seat, key: Key, name: str, why: str, now: float
  ) -> None:
    """Notes an accusation, if both islands report being at the place."""
    by_name = {each.name: each for each in self.members}
    generation, channel, count = key
    both = [seat, by_name.get(name)]
    if generation != self.number or not all(
      each and each.at.get(channel) and each.at[channel].count >= count
      for each in both
    ):
      return
    if not self._accused:  # Others may accuse the same island later.
      timeout = seat.join.timeout
      self._judging_at = now + (min(ODD, timeout) if why else timeout)
    self._accused[seat.name, name] = why

  def _judge(self) -> None:
    """Ends the island that accusations blame; see `accusations`."""
    accused, self._accused = self._accused, {}
    name, fate = accusations.judge(
      accused, {seat.name: seat.number for seat in self.members}, self._strikes
    )
    if len(accusers := {accuser for accuser, _ in accused}) == 1:
      self._strikes |= accusers
    self._end({seat: fate for seat in self.members if seat.name == name})

  @property
  def _may_leave(self) -> bool:
    """Whether enough islands are left after the asking islands have left."""
    left = [seat for seat in self.members if seat not in self._asking]
    return len(left) >= self._minimum

  def _asked(self, seat: Seat, now: float) -> None:
    """Handles an island's request to stop."""
    if seat not in self._asking:
      self._asking[seat] = now
      if not self._may_leave:
        self._ask_all_to_stop()

  def _release(self, seat: Seat, waited: float) -> None:
    """Releases an island as soon as little work is lost with it.

    That is when others may join. If loops admit no island, it leaves at once.
    """
    self._parting.add(seat)
    if seat.join.welcomes and waited < ASKING + PARTING:
      return
    if seat not in self._there or self._stops or self.is_over:
      return
    if self._may_leave:
      self._end({seat: LEFT}, 'left')
    else:
      self._ask_all_to_stop()

  def _continue_stopping(self, each: Iterable[Known]) -> None:
    """Asks stopping islands again for their steps."""
    last = [known.last for known in each if known.last is not None]
    if last:
      self._reached = {seat.name: last[0] - 1 for seat in self.members}
      self._settle_last()
    elif any(known.reached is not None for known in each):
      self._ask_all_to_stop()

  def _ask_all_to_stop(self) -> None:
    """Asks all islands to stop, unless they were asked already."""
    if not (self._stops or self.is_over):
      self._reached = {}
      self._say(self.members, messages.Stop())

  @property
  def _stops(self) -> bool:
    """Whether all islands are about to stop."""
    return self._reached is not None

  def _settle_last(self) -> None:
    """Tells the last step, once every member has reported its step.

    While islands agree, none continues beyond its current step. So each of them
    will pass the step after the last that any has reached.
    """
    reached = self._reached
    if reached is not None and all(s.name in reached for s in self.members):
      self._say(self.members, messages.Last(max(reached.values()) + 1))

  def _end(
    self,
    fates: Mapping[Seat, str],
    kind: Any = 'error',
    line: str = '',
    code: int = 1,
  ) -> None:
    """Ends islands; begins a generation without them, or ends all if too few.

    Ended islands hear the line, or else their own fate; see `messages.Ended`.
    """
    gone = [seat for seat in self.members if seat in fates]
    for seat in [seat for seat in self.coming if seat in fates]:
      self._drop(seat, fates[seat], kind)
    if self.is_over or not gone:
      return
    rest = [seat for seat in self.members if seat not in fates]
    self.is_over = len(rest) < self._minimum
    lines = [line or f'{seat.title} {fates[seat]}' for seat in gone]
    if self.is_over:
      kind = 'apart' if kind == 'apart' else 'error'
      self._say(self.members, messages.Ended(lines[0], kind, code))
    else:
      for seat, own in zip(gone, lines, strict=True):
        self._say([seat], messages.Ended(own, kind))
      self._begin(rest)
    for seat in gone:
      self._note('left' if kind == 'left' else 'ended', seat, fates[seat])
    if not self.is_over:
      self._settle_last()

  def _drop(self, seat: Seat, fate: str, kind: Any) -> None:
    """Stops expecting an island that prepares."""
    self.coming.remove(seat)
    if seat.name not in self._known:
      self.slots = [FREE if name == seat.name else name for name in self.slots]
    self._note('ended', seat, fate)
    self._say([seat], messages.Ended(f'{seat.title} {fate}', kind))

  def _note(self, kind: str, seat: Seat, words: str) -> None:
    """Notes an event of an island, and the members afterwards."""
    names = [] if self.is_over else [each.name for each in self.members]
    self._note_(kind, seat.name, words, self.number, names)


def missed(known: Known, others: Iterable[Known]) -> list[messages.Answer]:
  """Returns the answers that other islands have heard and an island waits for.

  Every answer needs all islands, so no island is ahead of another by more than
  one answer on each channel.
  """
  own = {answer.key for answer in known.heard}
  generation = known.membership.generation
  heard = {
    answer.key: answer
    for other in others
    for answer in other.heard
    if answer.key[0] == generation
  }
  last = {key[1]: heard[key] for key in sorted(heard)}  # By channel.
  return [answer for answer in last.values() if answer.key not in own]


def _index(membership: messages.Membership) -> int:
  return membership.generation


def _names(seats: Iterable[Seat]) -> str:
  names = sorted(seat.name for seat in seats)
  return ', '.join(names[:3]) + ', ...' * (len(names) > 3)
