"""Messages between islands over Arrow Flight.

Each island serves its messages to others, and fetches the messages of several
islands at a time, so that a late island leaves no link idle.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
import functools
import threading
import time
from typing import Any, NoReturn

import numpy as np

from selsync_jax.cluster.link import Link
from selsync_jax.cluster.preemption import Agreement
from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.member import ApartError, Flow
from selsync_jax.cluster.protocol.messages import Key, Kind, Membership, Place
from selsync_jax.config import RunError, Stopped
from selsync_jax.islands.audit import Audit
from selsync_jax.islands.credentials import Credentials
from selsync_jax.islands.flight import (
  Connections,
  content,
  ERRORS,
  flight,
  Outbox,
  PATIENCE,
  PIECE,
)
from selsync_jax.islands.guard import Guard
from selsync_jax.islands.peers import About, Peers, View
from selsync_jax.islands.program import complete

FLOWS = 4
"""Messages that an island fetches at a time."""

ACCUSING = 0.5
"""Seconds after which a wrong message is reported again.

The coordinator ignores a report about an island until it hears that this island
has arrived.
"""


class FlightPeers(Peers):
  """Islands that serve and fetch messages.

  Small messages pass through the coordinator. An island that cannot be reached
  for the timeout is reported there. Channels exchange independently.
  """

  def __init__(
    self,
    link: Link,
    outbox: Outbox,
    credentials: Credentials,
    audit: Audit,
    channel: str = '',
  ):
    self._link, self._outbox, self._channel = link, outbox, channel
    self._audit, self._guard = audit, Guard(link.say)
    self._credentials = credentials
    own, relay = link.member.join.address, link.member.address
    self._connections = Connections(credentials, own, relay)
    self._timeout = link.member.join.timeout
    self._step: int | None = None
    self._served: Key | None = None  # The last exchange.
    self._was_admitted = self._now.admissions > 0

  @property
  def _now(self) -> Membership:
    now = self._link.member.membership
    assert now
    return now

  @property
  def view(self) -> View:
    now = self._now
    names = tuple(now.islands)
    return View(
      names,
      names.index(self._link.member.join.name),
      now.slots,
      prepares=not now.generation,
      was_admitted=self._was_admitted,
      admits=self._link.member.admits,
      exchanged=self._served is not None,
    )

  @property
  def agreement(self) -> Agreement:
    return self._link.agreement

  def channel(self, name: str) -> Peers:
    return FlightPeers(
      self._link, self._outbox, self._credentials, self._audit, name
    )

  def conclude(self) -> None:
    if self._served:
      self._answer(self._arrive('commit'))
      self._serve(None)

  def regroup(self) -> None:
    self._link.count(aborts=1)
    self._enter(self._link.member.enter)

  def enter(self) -> None:
    if self.prepares:
      self._enter(self._link.member.enter_prepared)
      self._was_admitted = self._now.admissions > 0

  def admit(self) -> None:
    self._enter(self._link.member.admit)

  def _enter(self, enter: Callable[[], Flow[None]]) -> None:
    """Continues with other islands, and with no earlier message in flight."""
    if self.late:
      self.late.settle()
    self._link.run(enter())
    self._outbox.clear()
    self._served = None

  def exchange(
    self, messages: Sequence[np.ndarray], about: About | None = None
  ) -> list[np.ndarray]:
    self._connections.close_others(self._now.islands.items())
    # All islands send the same elements if one array is like each message.
    is_part = about and all(x is about.received[0] for x in about.received)
    about = about or About('exchange', messages[0], messages)
    like = about.like
    place = self._arrive('average', about.operation, like.dtype, like.shape)
    names = self.names

    def sends(to, start, content):
      try:
        self._audit.sends(names[to], place, content, start)
      except RunError as error:
        self._link.do(self._link.member.fail, str(error))
        raise

    self._outbox.put(place.key, messages, sends)
    senders = [(self.index + i) % self.size for i in range(1, self.size)]
    calls = {sender: futures.Future[np.ndarray]() for sender in senders}
    rest = iter(senders)
    for _ in senders[:FLOWS]:  # No pool: it takes no work during exit.
      threading.Thread(
        target=self._fetch_each, args=(place, about, rest, calls), daemon=True
      ).start()
    futures.wait(calls.values())
    received = [*messages]
    for sender, call in calls.items():
      received[sender] = call.result()
    self._serve(place.key)
    if is_part:
      self._guard.see(place, names, received)
    return received

  def serve(self, message: np.ndarray) -> Callable[[int], np.ndarray]:
    """Serves a message to all islands; returns a function that fetches one's.

    All islands serve a message of the same type and shape. Each may fetch from
    any other, as often as it likes, until this island calls this again.
    """
    about = About('probe', message, [message] * self.size)
    place = self._arrive(
      'average', about.operation, message.dtype, message.shape
    )
    self._outbox.put(place.key, about.received)
    self._serve(place.key)
    return functools.partial(self._fetch, place, about)

  def _serve(self, key: Key | None) -> None:
    """Serves an exchange, and stops serving the one before it.

    Each island that has sent its messages of this exchange has received all of
    the previous exchange.
    """
    if self._served:
      self._outbox.drop(self._served)
    self._served = key

  def _arrive(
    self,
    kind: Kind,
    operation: str = '',
    dtype: Any = '',
    shape: Sequence[int] = (),
    body: bytes | None = b'',
  ) -> Place:
    """Tells the coordinator that this island has arrived at a place."""
    if self.prepares:
      raise RunError('this island only prepares; it must enter first')
    name = np.dtype(dtype).name if dtype else ''
    arrive = self._link.member.arrive
    return self._link.do(
      arrive, kind, self._channel, operation, name, shape, body, self._step
    )

  def _answer(self, place: Place) -> bytes:
    """Returns the answer at a place, when all islands have arrived there."""
    return self._link.run(self._link.member.answer(place))

  def share(self, message: np.ndarray) -> list[np.ndarray]:
    whole = np.frombuffer(self._vote('gather', message), message.dtype)
    return [x.reshape(message.shape) for x in np.split(whole, self.size)]

  def fold(self, operation: str, message: np.ndarray) -> np.ndarray:
    whole = self._vote(operation, message)
    return np.frombuffer(whole, message.dtype).reshape(message.shape).copy()

  def _vote(self, operation: str, message: np.ndarray) -> bytes:
    body = message.tobytes()
    place = self._arrive('vote', operation, message.dtype, message.shape, body)
    self._audit.sends('coordinator', place, body)
    whole = self._answer(place)
    self._link.count(sent_bytes=message.nbytes, received_bytes=len(whole))
    return whole

  def land(self, arrive: Callable[[], bool]) -> bool:
    place = self._arrive('landing', 'pmin', 'bool', (), None)
    vote = bytes([arrive()])
    self._audit.sends('coordinator', place, vote)
    self._link.do(self._link.member.vote, place, vote)
    return self._answer(place) == b'\1'

  def departs(self) -> None:
    self._step = self._link.member.done.step

  def reach(self, step: int) -> None:
    self._link.do(self._link.member.reach, step)

  def shows(self, arrays: Mapping[str, Any]) -> None:
    self._audit.names(arrays)

  def averaged(self) -> None:
    self._link.count(averages=1)

  def guessed(self, is_right: bool) -> None:
    self._link.count(guesses=1, mistakes=not is_right)

  def close(self, finished: bool = True) -> None:
    member = self._link.member
    try:
      complete(self, lambda _: self._link.run(member.leave(finished)))
    except ApartError:
      raise
    except (RunError, Stopped):
      pass
    finally:
      self._link.close(member.fail)
      self._outbox.shutdown()

  def fail(self, why: str = '') -> None:
    self._link.close(self._link.member.fail, why)
    self._outbox.shutdown()

  def _fetch_each(
    self,
    place: Place,
    about: About,
    senders: Iterator[int],
    calls: Mapping[int, futures.Future[np.ndarray]],
  ) -> None:
    """Fetches messages until no sender is left."""
    for sender in senders:
      try:
        calls[sender].set_result(self._fetch(place, about, sender))
      except BaseException as error:
        calls[sender].set_exception(error)

  def _fetch(self, place: Place, about: About, sender: int) -> np.ndarray:
    """Returns an island's message, which may come in several pieces."""
    like = about.received[sender]
    dtype, shape = about.like.dtype, like.shape
    said, blocks = self._call(place, sender, 0)
    if said != messages.Array(dtype.name, shape):
      self._report(place, sender, f'{said or "no array"} at {place}')
    for start in range(PIECE, like.size * dtype.itemsize, PIECE):
      blocks += self._call(place, sender, start)[1]
    parts = [np.frombuffer(block, np.uint8) for block in blocks]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if whole.nbytes != like.size * dtype.itemsize:
      self._report(place, sender, f'{whole.nbytes} bytes at {place}')
    return whole.view(dtype).reshape(shape)

  def _report(self, place: Place, sender: int, why: str) -> NoReturn:
    """Reports a wrong message; then one of the two islands ends."""
    accuse, name = self._link.member.accuse, self.names[sender]
    while True:  # Until this raises.
      self._link.check()
      self._link.do(accuse, place, name, why[:200])
      time.sleep(ACCUSING)

  def _call(
    self, place: Place, sender: int, start: int
  ) -> tuple[messages.Array | None, list[Any]]:
    """Returns the array of a message, and the blocks of a piece of it.

    Waits for a message that is not ready yet, as long as the sender lives. If
    one of the two cannot reach the other, even over a new connection, the
    coordinator ends one of them.
    """
    name, member = self.names[sender], self._link.member
    island = name, self._now.islands[name]
    # Before that, the coordinator ends an island that is silent everywhere.
    unreached, is_new, accuses = None, False, False
    while True:
      self._link.check()
      began = time.monotonic()
      try:
        found = self._attempt(place, sender, island, start)
        if accuses:
          self._link.do(member.acquit, name)
        return found
      except flight.FlightTimedOutError:
        self._link.check()  # The sender may have ended meanwhile.
        is_silent, unreached = time.monotonic() - began >= self._patience, None
        if is_silent and not is_new:  # Networks forget idle connections.
          self._connections.close(island)
          is_new = True
        elif is_silent:
          self._link.do(member.accuse, place, name)
          accuses = True
      except ERRORS:
        self._connections.close(island)  # Another way may lead there.
        self._link.check()
        unreached = unreached or began
        if time.monotonic() - unreached >= self._timeout:
          self._link.do(member.accuse, place, name)
          accuses = True
        time.sleep(0.1)

  @property
  def _patience(self) -> float:
    """Seconds after which a call has failed."""
    return PATIENCE + 2 * self._timeout

  def _attempt(
    self, place: Place, sender: int, island: tuple[str, str], start: int
  ) -> tuple[messages.Array | None, list[Any]]:
    """Returns the result of `_call`, from one attempt."""
    wanted = messages.Piece(place.key, self.index, start)
    writer, reader = self._connections.call(island, wanted, self._patience)
    blocks, size = [], 0
    with writer, self._link.cancelling(reader.cancel):
      said = messages.array(reader.schema.metadata)
      for chunk in reader:
        if (block := content(chunk.data)) is None:
          self._report(place, sender, f'no bytes at {place}')
        blocks.append(block)
        size += block.size or 1
        if size > PIECE:
          self._report(place, sender, f'more than it should at {place}')
    self._link.count(received_bytes=sum(block.size for block in blocks))
    return said, blocks
