"""Islands that have met, as the meeting point sees them.

What each of them says, all hear: the bytes they share, the step after which
they stop, and who has ended.
"""

from collections.abc import Callable, Sequence
import contextlib
import threading
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


class Seat:
  """The connection to an island, as the meeting point has it."""

  member: Member  # Who has said hello.

  def __init__(self, writer: Any):
    self.silent = 0.0  # Seconds, counted: this process may be frozen.
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
  the next, or all end if they would be too few. All hear what is said of a
  generation in the same order.

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
    self._tally = Tally(seat.member.name for seat in seats)
    self._stops = self._is_over = False
    self._changing = threading.RLock()
    self._number = 0
    self._begin(seats)

  def listen(self, seat: Seat, reader: Any) -> None:
    """Does what an island says, until it ends."""
    try:
      while True:
        head, body = decode(reader.read_chunk())
        if 'left' in head:
          self._leave(seat)
          return
        seat.silent = 0.0
        with self._changing:
          self._hear(seat, head, body)
    except (StopIteration, ValueError, *ERRORS):
      self._end(seat, GONE)

  def count_silence(self, seat: Seat) -> None:
    """Counts a beat of silence; names an island that is silent for too long."""
    seat.silent += BEAT
    if seat.silent > self._timeout:
      self._end(seat, f'has not answered for {self._timeout:g} s')

  def _begin(self, seats: Sequence[Seat]) -> None:
    """Begins a generation; what the one before it has not shared is void."""
    self._seats, self._number = seats, self._number + 1
    self._shares: dict[tuple[Any, ...], dict[Seat, bytes]] = {}
    addresses = {s.member.name: s.member.address for s in seats}
    self._send({'generation': self._number, 'islands': addresses})

  def _hear(self, seat: Seat, head: Head, body: bytes) -> None:
    if 'share' in head:
      self._share(seat, tuple(head['share']), body)
    elif 'stop' in head and not self._stops:
      self._stops = True
      self._send({'stop': True})
    elif 'reached' in head:
      self._conclude(self._tally.collect(seat.member.name, head['reached']))
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
      self._send({'shared': key}, whole)

  def _conclude(self, last: int | None) -> None:
    if last is not None and self._stops:
      self._send({'last': last})

  def _leave(self, seat: Seat) -> None:
    """Expects no more of an island: all that begin to leave end well."""
    with self._changing:
      self._is_over = True
      self._say(f'{seat.member.name} {LEFT}')

  def _end(self, seat: Seat, fate: str) -> None:
    """Begins a generation without an island; or all end, if it was needed."""
    with self._changing:
      if self._is_over or seat not in self._seats:
        return
      name, rest = seat.member.name, [s for s in self._seats if s is not seat]
      self._say(f'{name} {fate}')
      self._is_over = len(rest) < self._minimum
      for each in self._seats if self._is_over else (seat,):
        each.send({'ended': name, 'fate': fate})
      if not self._is_over:
        self._begin(rest)
        self._conclude(self._tally.collect(name))

  def _send(self, head: Head, body: bytes = b'') -> None:
    for seat in self._seats:
      seat.send(head, body)
