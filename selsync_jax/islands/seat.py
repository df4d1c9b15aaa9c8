"""The connection to an island, as the meeting point has it."""

import collections
import contextlib
import itertools
import queue
import threading
import time
from typing import Any

from selsync_jax.islands.control import encode, Head, Member
from selsync_jax.islands.flight import ERRORS
from selsync_jax.islands.meter import Meter
from selsync_jax.islands.standing import Standing

WINDOW = 240
"""Signs of life over which rates are means: those of a minute."""

_NUMBERS = itertools.count()


class Seat:
  """The connection to an island, as the meeting point has it.

  Attributes:
    member: the island, as its first message describes it.
    standing: what it knows of its run, if it comes from another meeting point.
    number: by which it is the first, the second, and so on of all seats.
    silent: seconds since it has said anything; counted, as this process may be
      frozen.
    is_prepared: whether it would enter, if it has come again.
    began: the step that it was at when its generation began; `None` until it
      has told one since.
    awaited: seconds that others have waited for it at one place, counted; this
      place is `awaited_at`.
  """

  member: Member
  standing: Standing | None
  began: int | None
  awaited_at: tuple[Any, ...] | None

  def __init__(self, writer: Any):
    self.number = next(_NUMBERS)
    self.silent, self.is_prepared = 0.0, False
    self.began, self.awaited, self.awaited_at = None, 0.0, None
    start: tuple[float, Head] = time.monotonic(), Meter().read()
    self._told = collections.deque([start], WINDOW)
    self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    self._sender = threading.Thread(
      target=self._write, args=(writer,), daemon=True
    )
    self._sender.start()

  def note(self, head: Head) -> None:
    """Keeps what the island tells of itself, which a `Meter` has counted."""
    counts = {name: int(head[name]) for name in self._told[0][1]}
    self._told.append((time.monotonic(), counts))
    if self.began is None:
      self.began = counts['step']

  @property
  def account(self) -> dict[str, float]:
    """What the island has told last, and bytes per second in a minute."""
    (start, before), (end, now) = self._told[0], self._told[-1]
    rates = {
      f'{name}_per_second': (now[name] - before[name]) / ((end - start) or 1)
      for name in ('sent_bytes', 'received_bytes')
    }
    return {**now, **rates}

  def send(self, head: Head, body: bytes = b'') -> None:
    """Queues a message, so that an island that does not read blocks nobody.

    `Circle.listen` notices if nobody is there.
    """
    self._outgoing.put(encode(head, body))

  def close(self) -> None:
    """Sends what waits; the connection ends with the call that serves it."""
    self._outgoing.put(None)
    self._sender.join()

  def _write(self, writer: Any) -> None:
    while (message := self._outgoing.get()) is not None:
      with contextlib.suppress(*ERRORS):
        writer.write_metadata(message)
