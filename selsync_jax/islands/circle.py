"""Islands that have met, as the meeting point sees them.

What each of them says, all hear: the bytes they share, the step after which
they stop, and who has ended.
"""

import collections
from collections.abc import Callable, Sequence
import contextlib
import itertools
import threading
import time
from typing import Any

from selsync_jax.cluster.channel import FAILED
from selsync_jax.cluster.channel import GONE
from selsync_jax.cluster.channel import LEFT
from selsync_jax.cluster.channel import Tally
from selsync_jax.islands.control import BEAT
from selsync_jax.islands.control import decode
from selsync_jax.islands.control import encode
from selsync_jax.islands.control import Head
from selsync_jax.islands.control import Member
from selsync_jax.islands.flight import ERRORS

GRACE = 1.0
"""Seconds from the first island that asks for something until it is decided.

Whoever ends a whole run asks all of them to stop, but not in the same moment.
"""

_AGES = itertools.count(0, -1)


class Seat:
  """The connection to an island, as the meeting point has it."""

  member: Member  # Who has said hello.

  def __init__(self, writer: Any):
    self.silent = 0.0  # Seconds, counted: this process may be frozen.
    self.age = next(_AGES)  # Negative: the first one has the highest.
    self.taken = threading.Event()  # It belongs to a generation.
    self._writer, self._sending = writer, threading.Lock()

  def send(self, head: Head, body: bytes = b'') -> None:
    """Sends a message; `listen` notices if nobody is there."""
    with self._sending, contextlib.suppress(*ERRORS):
      if self._writer:
        self._writer.write_metadata(encode(head, body))

  def close(self) -> None:
    """Forgets the connection, which ends with the call that serves it."""
    with self._sending:
      self._writer = None


class Circle:
  """Islands that have met, and what becomes of them when some end.

  Those that are there at a time are a generation. When one ends, the others are
  the next, or all end if they would be too few. One that comes again is in the
  next as soon as the others are ready. One that asks to stop leaves, or all
  stop after the same step. All hear the same in the same order.

  Args:
    seats: those of the first generation, in the order of their indices.
    minimum: the least number of islands that go on.
    say: a function that takes a line about each island that ends.
  """

  def __init__(
    self, seats: Sequence[Seat], minimum: int, say: Callable[[str], None]
  ):
    self._minimum, self._say = minimum, say
    self._timeout = min(seat.member.timeout for seat in seats)
    self._slots = [seat.member.name for seat in seats]
    self._accused: list[str] = []  # Pairs that cannot reach each other.
    self._asking: set[Seat] = set()  # Who asks to stop.
    self._tally: Tally | None = None  # Once all are about to.
    self.is_over = self._has_finished = False
    self._changing = threading.RLock()
    self._waiting: list[Seat] = []  # Who has come again.
    self._ready: set[Seat] = set()  # The members that wait for them.
    self._admits, self._admissions = False, 0
    self._number = 0
    self._begin(seats)

  def has_finished_without(self, member: Member) -> bool:
    """Returns whether the run has ended well when an island was not there."""
    there = [seat.member for seat in self._seats]
    is_new = member.name not in [each.name for each in there]
    return self._has_finished and is_new and member.run == there[0].run

  def admit(self, seat: Seat, has_given_up: Callable[[], bool]) -> bool:
    """Lets in an island that has come again, when the others are ready.

    Returns:
      Whether it was let in: not if the others end before.

    Raises:
      ValueError: if it gives up, or there is one of its name.
    """
    name = seat.member.name
    self._free(name)
    with self._changing:
      self._waiting = [s for s in self._waiting if s.member.name != name]
      if not self.is_over:
        self._waiting.append(seat)
        self._say(f'{name} has come again from {seat.member.address}')
    while seat in self._waiting and not self.is_over and not has_given_up():
      seat.taken.wait(BEAT)
    with self._changing:
      self._waiting = [each for each in self._waiting if each is not seat]
      if not seat.taken.is_set() and not self.is_over:
        raise ValueError(f'island {name} does not wait any longer')
      return seat.taken.is_set()

  def _free(self, name: str) -> None:
    """Waits until an island of this name has ended; it may not have noticed."""
    for _ in range(5):
      with self._changing:
        there = [seat for seat in self._seats if seat.member.name == name]
        if not there or self.is_over:
          return
        if there[0].silent > 2 * BEAT:
          self._end(there[0], 'is replaced')
      time.sleep(BEAT)
    raise ValueError(f'island {name} is there already')

  def listen(self, seat: Seat, reader: Any) -> None:
    """Does what an island says, until it ends."""
    try:
      while True:
        head, body = decode(reader.read_chunk())
        if 'left' in head:
          self._leave(seat, head['finished'])
          return
        seat.silent = 0.0
        with self._changing:
          self._hear(seat, head, body)
    except (StopIteration, ValueError, *ERRORS):
      self._end(seat, GONE)

  def beat(self, seat: Seat) -> None:
    """Sends a sign of life; ends an island that has sent none for too long."""
    if seat not in self._seats:
      return  # It may be frozen, and nobody reads what it is sent.
    seat.send({})
    seat.silent += BEAT
    if seat.silent > self._timeout:
      self._end(seat, f'has not answered for {self._timeout:g} s')

  def _begin(self, seats: Sequence[Seat]) -> None:
    """Begins a generation; what the one before it has not shared is void."""
    self._seats, self._number = seats, self._number + 1
    self._shares: dict[tuple[Any, ...], dict[Seat, bytes]] = {}
    for seat in seats:
      seat.taken.set()
    head = {
      'generation': self._number,
      'islands': {s.member.name: s.member.address for s in seats},
      'slots': self._slots,
      'admissions': self._admissions,
    }
    self._send(head)

  def _hear(self, seat: Seat, head: Head, body: bytes) -> None:
    if 'share' in head:
      self._share(seat, tuple(head['share']), body)
    elif 'ready' in head:
      self._ready.add(seat)
      self._admit_if_ready()
    elif 'stop' in head:
      self._asking.add(seat)
      if len(self._seats) == self._minimum:
        self._stop()  # None can leave.
      elif len(self._asking) == 1:
        threading.Timer(GRACE, self._stop).start()
    elif 'reached' in head:
      self._conclude(seat, head['reached'])
    elif 'unreached' in head:
      if not self._accused:
        threading.Timer(GRACE, self._judge).start()
      self._accused += [seat.member.name, head['unreached']]
    elif 'failed' in head:
      self._end(seat, FAILED)

  def _share(self, seat: Seat, key: tuple[Any, ...], body: bytes) -> None:
    if key[0] != self._number:
      return  # It has not heard yet that there is another generation.
    bodies = self._shares.setdefault(key, {})
    bodies[seat] = body
    if len(bodies) == len(self._seats):
      del self._shares[key]
      whole = b''.join(bodies[each] for each in self._seats)
      is_asked = self._waiting and not self._tally
      admits = bool(is_asked) and not self._admits and not key[1]
      self._admits |= admits
      self._send({'shared': key, 'admits': admits}, whole)

  def _admit_if_ready(self) -> None:
    """Begins a generation with those who wait, unless all are to stop."""
    if self._admits and self._ready.issuperset(self._seats):
      self._admits, self._ready = False, set()
      self._admissions += 1
      new: list[Seat] = []
      if not self._tally:
        new, self._waiting = self._waiting, []
      self._begin(sorted([*self._seats, *new], key=lambda s: s.member.name))

  def _judge(self) -> None:
    """Ends the island that most others cannot reach, or that reaches none.

    Of two, it is the one that came last.
    """
    with self._changing:
      times, self._accused = collections.Counter(self._accused), []
      there = [seat for seat in self._seats if seat.member.name in times]
      if len(there) > 1:
        by_age = sorted(there, key=lambda seat: seat.age)
        worst = max(by_age, key=lambda seat: times[seat.member.name])
        self._end(worst, 'cannot be reached')

  def _stop(self) -> None:
    """Lets go who asks to stop, or stops all if too few would be left."""
    with self._changing:
      asking = [seat for seat in self._seats if seat in self._asking]
      self._asking = set()
      if self.is_over or self._tally or not asking:
        return
      if len(self._seats) - len(asking) >= self._minimum:
        for seat in asking:
          self._end(seat, LEFT)
      else:
        self._tally = Tally(each.member.name for each in self._seats)
        self._send({'stop': True})

  def _conclude(self, seat: Seat, reached: int = -1) -> None:
    """Tells all the last step, once it is known; see `Tally`."""
    if self._tally:
      last = self._tally.collect(seat.member.name, reached)
      if last is not None:
        self._send({'last': last})

  def _leave(self, seat: Seat, finished: bool) -> None:
    """Expects no more of an island: all that begin to leave end well."""
    with self._changing:
      if seat in self._seats:
        self.is_over, self._has_finished = True, finished
        self._say(f'{seat.member.name} {LEFT}')

  def _end(self, seat: Seat, fate: str) -> None:
    """Begins a generation without an island; or all end, if it was needed."""
    with self._changing:
      if self.is_over or seat not in self._seats:
        return
      name, rest = seat.member.name, [s for s in self._seats if s is not seat]
      self._say(f'{name} {fate}')
      self.is_over = len(rest) < self._minimum
      for each in self._seats if self.is_over else (seat,):
        each.send({'ended': name, 'fate': fate})
      if not self.is_over:
        self._begin(rest)
        self._conclude(seat)
        self._admit_if_ready()

  def _send(self, head: Head, body: bytes = b'') -> None:
    for seat in self._seats:
      seat.send(head, body)
