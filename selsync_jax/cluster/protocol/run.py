"""A run, seen by its coordinator: its members, and how they change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from selsync_jax.cluster.protocol import accusations, messages
from selsync_jax.cluster.protocol.generation import Generation
from selsync_jax.cluster.protocol.messages import Arrived, Known, Place
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
    generation: the islands that train.
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
  ):
    self._minimum, self._identity = minimum, identity
    self._say, self._note_, self._grace = say, note, grace
    each = [known for known in seats.values() if known]
    last = newest(each)
    self.slots = slots
    self._known = {*slots} - {FREE}  # Names that have trained.
    self.coming: list[Seat] = []
    self._asking: dict[Seat, float] = {}  # Since when islands ask to stop.
    self._parting: set[Seat] = set()  # Asking islands that are released.
    # Steps that islands have reached, by name, once all are about to stop.
    self._reached: dict[str, int] | None = None
    self.is_over = self.has_finished = False
    self._admissions = last.admissions if last else 0
    self._admits = any(k.admits for k in each if k.membership == last)
    self._strikes: set[str] = set()  # Accusers that were believed once.
    for seat, known in seats.items():
      for answer in missed(known, each) if known else ():
        say([seat], answer)
    self.generation = Generation(last.generation if last else 0, [])
    self._begin(seats)
    self._continue_stopping(each)

  @property
  def members(self) -> Sequence[Seat]:
    """The islands that train."""
    return self.generation.members

  @property
  def there(self) -> Sequence[Seat]:
    """Islands that train or prepare; none when all have ended."""
    return [] if self.is_over else [*self.members, *self.coming]

  def _has(self, seat: Seat) -> bool:
    return not self.is_over and (seat in self.generation or seat in self.coming)

  def tick(self, now: float) -> None:
    """Ends silent and late islands, and takes other actions that are due."""
    self._judge(now)
    for seat, since in self._asking.items():
      if now - since >= ASKING and seat in self.there:
        self._release(seat, now - since)
    for seat in self.there:
      if now - seat.heard_at > seat.join.timeout:
        self._end({seat: seat.silence}, 'lost')
    if self._grace is not None and not self.is_over:
      late = f'is more than {self._grace:g} s late'
      found = self.generation.late(self._minimum, self._grace, now)
      self._end(dict.fromkeys(found, late), 'lost')

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
        if generation == self.generation.number:
          seat.step(generation, step)
      case messages.Accused():
        self.generation.accuse(seat, message, now)
      case messages.Acquitted(name):
        self.generation.acquit(seat, name)
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
    members, number = in_order(seats, self.slots), self.generation.number + 1
    self.generation = Generation(number, members)
    self._known |= {seat.name for seat in members}
    self._say(members, self._membership(number, members))

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
    current = self.generation
    if place.generation != current.number or seat not in current:
      return  # It has not yet heard of the new generation.
    if fate := current.arrive(seat, said, now):
      self._end({seat: fate})
      return
    odd, line = current.apart(place.key)
    if odd:
      self._end(dict.fromkeys(odd, 'is at another place'), 'apart', line)
    elif completed := current.completed(place.key):
      self._complete(*completed)

  def _complete(self, place: Place, bodies: Sequence[bytes]) -> None:
    """Answers at a place where all have arrived."""
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
      self._say(self.members, messages.Answer(place.key, admits, body))
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

  def _judge(self, now: float) -> None:
    """Ends the island that accusations blame; see `accusations`."""
    if not (accused := self.generation.accused(now)):
      return
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
    if seat not in self.generation or self._stops or self.is_over:
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
    self._note_(kind, seat.name, words, self.generation.number, names)


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


def newest(known: Iterable[Known]) -> messages.Membership | None:
  """Returns the last generation of which islands know."""
  each = (one.membership for one in known)
  return max(each, key=lambda each: each.generation, default=None)
