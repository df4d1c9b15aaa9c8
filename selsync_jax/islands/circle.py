"""Islands that have met, as the meeting point sees them.

What each of them says, all hear: the bytes they share, the step after which
they stop, and who has ended.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import secrets
import threading
import time
from typing import Any

from selsync_jax.cluster.agreement import Tally
from selsync_jax.cluster.channel import FAILED, GONE, LEFT
from selsync_jax.islands.control import BEAT, decode, Head, Member
from selsync_jax.islands.journal import Journal
from selsync_jax.islands.seat import Seat
from selsync_jax.islands.standing import FREE, missed, newest, seated, Standing

TRIES = 20
"""Attempts, a beat apart, until the end of an island has been noticed."""

SILENT = 2.0
"""Seconds without a sign of life, after which another may take its place."""

ASKING = 1.0
"""Seconds from an island's request to stop until it is let go.

Whoever ends a whole run asks all of them to stop, but not in the same moment.
"""

PARTING = 20.0
"""Seconds in which an island that is let go may hand over what it has computed.

Then it leaves without. Who asks it to stop kills it after 30, as a rule.
"""


class Circle:
  """Islands that have met, and what becomes of them when some end.

  Those that are there at a time are a generation. When one ends, the others are
  the next, or all end if they would be too few. One that comes again prepares,
  and is in the next as soon as it and the others are ready; one that asks to
  stop is in it no more. Or all stop after the same step, if too few would be
  left. All hear the same in the same order.

  Args:
    standings: what each island knows of its run.
    minimum: the least number of islands that go on.
    journal: where it is noted who comes and goes.
    grace: seconds that those who have come to a place, if they are enough to go
      on, wait for the others there; `None` is as long as it takes.

  Attributes:
    number: that of the generation.
    slots: the names of the run's islands; see `seated`.
  """

  def __init__(
    self,
    standings: Mapping[Seat, Standing],
    minimum: int,
    journal: Journal,
    grace: float | None = None,
  ):
    self._minimum, self._journal, self._grace = minimum, journal, grace
    self._timeout = min(seat.member.timeout for seat in standings)
    each, now = standings.values(), newest(standings.values())
    self.slots = now.slots
    self._known = {*now.slots} - {FREE}  # Who has trained.
    self._asking: set[Seat] = set()  # Who asks to stop.
    self._parting: set[Seat] = set()  # Who of them is let go.
    self._tally: Tally | None = None  # Once all are about to.
    self.is_over = self._has_finished = False
    self._changing = threading.RLock()
    self._coming: list[Seat] = []  # Who has come again, and is not in yet.
    self._ready: set[Seat] = set()  # The members that wait for them.
    self._admits = any(s.admits for s in each if s.generation == now.generation)
    self._id = secrets.token_hex(8)
    self._admissions, self.number = now.admissions, now.generation
    for seat, standing in standings.items():
      for key, admits, whole in missed(standing, each):
        seat.send({'shared': key, 'admits': admits}, whole)
    self._begin(standings)
    self._go_on_stopping(each)

  @property
  def there(self) -> Sequence[Seat]:
    """Those that train and those that prepare; none when all have ended."""
    with self._changing:
      return [] if self.is_over else [*self._seats, *self._coming]

  def has_finished_without(self, member: Member) -> bool:
    """Returns whether the run has ended well when an island was not there."""
    there = [seat.member for seat in self._seats]
    is_new = member.name not in [each.name for each in there]
    return self._has_finished and is_new and member.run == there[0].run

  def receive(self, seat: Seat) -> None:
    """Lets an island prepare that comes late or again; it hears who is there.

    Raises:
      ValueError: if there is one of its name, or no slot for it.
    """
    name = seat.member.name
    for _ in range(TRIES):
      with self._changing:
        self._end_if_silent(name)
        if name not in [each.member.name for each in self.there]:
          how = 'has come again' if name in self.slots else 'has come'
          self.slots = seated(self.slots, name, seat.member.slot)
          self._coming.append(seat)
          self._note('returned', seat, f'{how} from {seat.member.address}')
          seat.is_prepared = False
          seat.send(self._generation(0, [*self._seats, seat]))
          return
      time.sleep(BEAT)
    raise ValueError(f'island {name} is there already')

  def await_end(self, name: str) -> None:
    """Returns when all have ended, of which an island seems to know.

    Raises:
      ValueError: if they go on.
    """
    for _ in range(TRIES):
      with self._changing:
        self._end_if_silent(name)
        if self.is_over:
          return
      time.sleep(BEAT)
    raise ValueError(
      f'the others train; their loop lets nobody in, so island {name} may join '
      'when they have ended'
    )

  def _end_if_silent(self, name: str) -> None:
    """Ends an island of which another process of its name takes the place."""
    for seat in self.there:
      if seat.member.name == name and seat.silent > SILENT:
        self._end(seat, 'is replaced')

  def listen(self, seat: Seat, reader: Any) -> bool:
    """Does what an island says, until it ends.

    Returns:
      Whether it has not ended, but all others have, before they let it in.
    """
    try:
      while not self._has_missed(seat):
        head, body = decode(reader.read_chunk())
        if 'left' in head:
          self._leave(seat, head['finished'])
          return False
        if 'failed' in head:
          self._end(seat, FAILED)
          return False
        seat.silent = 0.0
        with self._changing:
          self._hear(seat, head, body)
      return True
    except Exception:  # It has ended, or says what no island says.
      self._end(seat, GONE)
      return False

  def _has_missed(self, seat: Seat) -> bool:
    with self._changing:
      return self.is_over and seat in self._prepared

  def close(self) -> None:
    """Ends nobody and lets nobody in any more."""
    with self._changing:
      self.is_over, self._coming = True, []

  def beat(self, seat: Seat) -> None:
    """Sends a sign of life; ends an island for which others wait too long."""
    if seat not in [*self._seats, *self._coming]:
      return  # It may be frozen, and nobody reads what it is sent.
    seat.send({})
    seat.silent += BEAT
    if seat.silent > self._timeout:
      fate = f'has not answered for {self._timeout:g} s'
      self._end(seat, fate, is_late=True)
    elif self._grace is not None and self._awaited(seat) > self._grace:
      self._end(seat, f'is more than {self._grace:g} s late', is_late=True)

  def _awaited(self, seat: Seat) -> float:
    """Returns the seconds that enough others have waited for an island."""
    with self._changing:
      keys = (
        key
        for key, bodies in self._shares.items()
        if seat not in bodies and len(bodies) >= self._minimum
      )
      key = next(keys, None) if seat in self._seats else None
      if key in self._patient or seat.began in (None, seat.account['step']):
        key = None  # It may still receive something, or compile.
      if key is None or key != seat.awaited_at:
        seat.awaited_at, seat.awaited = key, 0.0
      else:
        seat.awaited += BEAT
      return seat.awaited

  def _begin(self, seats: Iterable[Seat]) -> None:
    """Begins a generation; what the one before it has not shared is void."""
    self._seats, self.number = self._in_order(seats), self.number + 1
    self._shares: dict[tuple[Any, ...], dict[Seat, bytes]] = {}
    self._patient: set[tuple[Any, ...]] = set()  # In which nobody is late.
    self._known |= {seat.member.name for seat in self._seats}
    for seat in self._seats:
      seat.began = None
    self._accused: set[tuple[str, str]] = set()  # Who cannot reach whom.
    self._send(self._generation(self.number, self._seats))

  def _in_order(self, seats: Iterable[Seat]) -> list[Seat]:
    return sorted(seats, key=lambda s: self.slots.index(s.member.name))

  def _generation(self, number: int, seats: Iterable[Seat]) -> Head:
    """Returns what islands hear of a generation; 0 is of one that prepares."""
    there = self._in_order(seats)
    known = self._known | {seat.member.name for seat in there}
    return {
      'generation': number,
      'circle': self._id,
      'islands': {s.member.name: s.member.address for s in there},
      'relays': {s.member.name: s.member.relays for s in there},
      'slots': [name if name in known else FREE for name in self.slots],
      'admissions': self._admissions,
      'calls': self._grace is not None,
    }

  @property
  def _prepared(self) -> list[Seat]:
    """Those that have come again, and would enter."""
    return [seat for seat in self._coming if seat.is_prepared]

  def _hear(self, seat: Seat, head: Head, body: bytes) -> None:
    if seat not in [*self._seats, *self._coming]:
      return  # It has not heard yet that it has ended.
    if 'share' in head:
      self._share(seat, tuple(head['share']), body, head['patient'])
    elif 'step' in head:
      seat.note(head)
    elif 'enter' in head:
      seat.is_prepared = True
    elif head.get('ready') == self._admissions:
      self._ready.add(seat)
      self._admit_if_ready()
    elif 'stop' in head and seat not in self._asking:
      self._asking.add(seat)
      if self._may_leave:
        _later(ASKING, lambda: self._let_go(seat))
      else:
        self._ask_all_to_stop()
    elif 'reached' in head:
      if self._tally:
        self._tally.collect(seat.member.name, head['reached'])
    elif 'unreached' in head and head['generation'] == self.number:
      if not self._accused:  # Others may come to the same one later.
        self._accused = accused = set()
        _later(self._timeout, lambda: self._judge(accused))
      self._accused.add((seat.member.name, head['unreached']))
    elif 'reached again' in head:
      self._accused.discard((seat.member.name, head['reached again']))

  def _share(
    self, seat: Seat, key: tuple[Any, ...], body: bytes, patient: bool
  ) -> None:
    if key[0] != self.number:
      return  # It has not heard yet that there is another generation.
    bodies = self._shares.setdefault(key, {})
    bodies[seat] = body
    if patient:
      self._patient.add(key)
    if len(bodies) == len(self._seats):
      del self._shares[key]
      self._patient.discard(key)
      whole = b''.join(bodies[each] for each in self._seats)
      wait = self._prepared or self._parting.intersection(self._seats)
      admits = bool(wait) and not (self._tally or self._admits or key[1])
      self._admits |= admits
      self._send({'shared': key, 'admits': admits}, whole)

  def _admit_if_ready(self) -> None:
    """Begins a generation with those who come and without those who leave.

    Unless all are to stop.
    """
    if self._admits and self._ready.issuperset(self._seats):
      self._admits, self._ready = False, set()
      self._admissions += 1
      gone = self._parting.intersection(self._seats)
      if gone and not self._may_leave:
        self._ask_all_to_stop()
      new = self._prepared
      if self._tally:
        new, gone = [], set()
      self._coming = [each for each in self._coming if each not in new]
      for seat in gone:
        seat.send(_ended(seat, LEFT))
      self._begin({*self._seats, *new} - gone)
      for seat in gone:
        self._note('left', seat, LEFT)
      for seat in new:
        self._note('admitted', seat, 'trains with the others')

  def _judge(self, pairs: set[tuple[str, str]]) -> None:
    """Ends the island that most others cannot reach, or that reaches none.

    Of two, it is the one that came last.

    Args:
      pairs: the accusers and whom they cannot reach. If these accusations have
        been taken back, or are of an earlier generation, nothing happens.
    """
    with self._changing:
      if pairs is not self._accused:
        return
      names = {seat.member.name for seat in self._seats}
      self._accused = set()
      times = collections.Counter(
        name for pair in pairs if names.issuperset(pair) for name in pair
      )
      there = [seat for seat in self._seats if seat.member.name in times]
      if len(there) > 1:
        worst = max(there, key=lambda s: (times[s.member.name], s.number))
        self._end(worst, 'cannot be reached')

  @property
  def _may_leave(self) -> bool:
    """Whether enough islands are left when those leave that ask to."""
    left = [seat for seat in self._seats if seat not in self._asking]
    return len(left) >= self._minimum

  def _let_go(self, seat: Seat) -> None:
    """Lets an island go, as soon as little is lost with it.

    That is when others may come. If loops let nobody in, it leaves at once.
    """
    with self._changing:
      if seat.member.welcomes:
        self._parting.add(seat)
        _later(PARTING, lambda: self._part(seat))
      else:
        self._part(seat)

  def _part(self, seat: Seat) -> None:
    """Ends an island that is let go, if it is still there."""
    with self._changing:
      if seat not in self._seats or self._tally or self.is_over:
        return
      if self._may_leave:
        self._end(seat, LEFT)
      else:
        self._ask_all_to_stop()

  def _go_on_stopping(self, standings: Iterable[Standing]) -> None:
    """Asks again how far islands are that are about to stop, if they are."""
    last = [s.last for s in standings if s.last is not None]
    if last:
      self._tally = Tally((), self._send)
      self._tally.collect('', last[0] - 1)
    elif any(s.reached is not None for s in standings):
      self._ask_all_to_stop()

  def _ask_all_to_stop(self) -> None:
    """Asks all to stop, unless they are asked already."""
    if self._tally or self.is_over:
      return
    names = (each.member.name for each in self._seats)
    self._tally = Tally(names, self._send)
    self._tally.ask()

  def _leave(self, seat: Seat, finished: bool) -> None:
    """Expects no more of an island: all that begin to leave end well."""
    with self._changing:
      if seat in self._seats:
        self.is_over = True
        self._has_finished |= finished
        self._note('finished' if finished else 'left', seat, LEFT)
      self._drop(seat, LEFT)

  def _end(self, seat: Seat, fate: str, is_late: bool = False) -> None:
    """Begins a generation without an island; or all end, if it was needed.

    One that is only late may come again by itself.
    """
    with self._changing:
      self._drop(seat, fate, is_late)
      if self.is_over or seat not in self._seats:
        return
      rest = [each for each in self._seats if each is not seat]
      self.is_over = len(rest) < self._minimum
      head = _ended(seat, fate, is_late and not self.is_over)
      for each in self._seats if self.is_over else (seat,):
        each.send(head)
      if not self.is_over:
        self._begin(rest)
      self._note('left' if fate == LEFT else 'ended', seat, fate)
      if not self.is_over:
        if self._tally:
          self._tally.collect(seat.member.name)
        self._admit_if_ready()

  def _drop(self, seat: Seat, fate: str, is_late: bool = False) -> None:
    """Expects an island no longer that has come again, if it is one."""
    if seat in self._coming:
      self._coming.remove(seat)
      if (name := seat.member.name) not in self._known:
        self.slots = [FREE if each == name else each for each in self.slots]
      self._note('left' if fate == LEFT else 'ended', seat, fate)
      seat.send(_ended(seat, fate, is_late))

  def _note(self, kind: str, seat: Seat, words: str) -> None:
    """Notes what has happened to an island, and who is there since then."""
    names = [] if self.is_over else [each.member.name for each in self._seats]
    self._journal.add(kind, seat.member.name, words, self.number, names)

  def _send(self, head: Head, body: bytes = b'') -> None:
    for seat in self._seats:
      seat.send(head, body)


def _later(seconds: float, do: Callable[[], None]) -> None:
  timer = threading.Timer(seconds, do)
  timer.daemon = True  # No process waits for it to end.
  timer.start()


def _ended(seat: Seat, fate: str, is_late: bool = False) -> Head:
  """Returns what is said of an island that has ended."""
  return {'ended': seat.member.name, 'fate': fate, 'lost': is_late}
