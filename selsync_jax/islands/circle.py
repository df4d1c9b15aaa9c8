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
  """Islands that have met.

  Args:
    seats: theirs, in the order of their indices.
    say: a function that takes a line about each island that ends.
  """

  def __init__(self, seats: Sequence[Seat], say: Callable[[str], None]):
    self._seats, self._say = seats, say
    self._timeout = min(seat.member.timeout for seat in seats)
    self._shares: dict[tuple[str, int], dict[Seat, bytes]] = {}
    self._tally = Tally(len(seats))
    self._stops, self._ended = False, False
    self._changing = threading.Lock()
    for seat in seats:
      seat.send({'islands': {s.member.name: s.member.address for s in seats}})

  def listen(self, seat: Seat, reader: Any) -> None:
    """Does what an island says, until it ends."""
    try:
      while True:
        head, body = decode(reader.read_chunk())
        if 'left' in head:
          self._leave(seat)
          return
        seat.silent = 0.0
        self._hear(seat, head, body)
    except (StopIteration, ValueError, *ERRORS):
      self._end(seat, GONE)

  def count_silence(self, seat: Seat) -> None:
    """Counts a beat of silence; names an island that is silent for too long."""
    seat.silent += BEAT
    if seat.silent > self._timeout:
      self._end(seat, f'has not answered for {self._timeout:g} s')

  def _hear(self, seat: Seat, head: Head, body: bytes) -> None:
    if 'share' in head:
      self._share(seat, tuple(head['share']), body)
    elif 'stop' in head:
      with self._changing:
        is_first, self._stops = not self._stops, True
      if is_first:
        self._send({'stop': True})
    elif 'reached' in head:
      last = self._tally.collect(seat.member.name, head['reached'])
      if last is not None:
        self._send({'last': last})
    elif 'failed' in head:
      self._end(seat, FAILED)

  def _share(self, seat: Seat, key: tuple[str, int], body: bytes) -> None:
    with self._changing:
      bodies = self._shares.setdefault(key, {})
      bodies[seat] = body
      if len(bodies) < len(self._seats):
        return
      del self._shares[key]
    self._send({'shared': key}, b''.join(bodies[each] for each in self._seats))

  def _leave(self, seat: Seat) -> None:
    """Expects no more of an island: all that begin to leave end well."""
    with self._changing:
      self._ended = True
    self._say(f'{seat.member.name} {LEFT}')

  def _end(self, seat: Seat, fate: str) -> None:
    """Tells all who has ended first; the others end because of it."""
    with self._changing:
      is_first, self._ended = not self._ended, True
    if is_first:
      self._say(f'{seat.member.name} {fate}')
      self._send({'ended': seat.member.name, 'fate': fate})

  def _send(self, head: Head, body: bytes = b'') -> None:
    for seat in self._seats:
      seat.send(head, body)
