"""Messages between islands over Arrow Flight.

Each island serves its messages to others, and fetches the messages of several
islands at a time, so that a late island leaves no link idle.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import itertools
import json
import math
import threading
import time
from typing import Any

import numpy as np

from selsync_jax.cluster.agreement import Agreement
from selsync_jax.config import RunError, Stopped
from selsync_jax.islands.flight import Connections, Credentials, ERRORS, flight
from selsync_jax.islands.link import Link
from selsync_jax.islands.meter import Meter
from selsync_jax.islands.outbox import Outbox, PATIENCE, PIECE
from selsync_jax.islands.peers import About, Peers, View
from selsync_jax.islands.protocol.member import ApartError, Flow, Regrouped
from selsync_jax.islands.protocol.messages import Key, Kind, Membership, Place
from selsync_jax.islands.relay import call_over

Relays = tuple[str, ...]
"""The addresses of the relays on a route; empty if the route is direct."""

FLOWS = 4
"""Messages that an island fetches at a time."""

LATE = 10.0
"""Seconds that the last pieces may take over relays, after all others."""

MENDING = 300.0
"""Seconds for which a route over relays is avoided after a failure."""


class FlightPeers(Peers):
  """Islands that serve and fetch messages.

  Args:
    name: name of this island.
    link: connection to the coordinator.
    outbox: messages that this island serves.
    credentials: the run's credentials.
    meter: counts sent and received bytes, and steps.
    timeout: seconds until an island that cannot be reached is an error.
    channel: name of the channel; channels exchange independently.

  Attributes:
    exchanged: whether other islands may still be completing an exchange.
  """

  def __init__(
    self,
    name: str,
    link: Link,
    outbox: Outbox,
    credentials: Credentials,
    meter: Meter,
    timeout: float = 60.0,
    channel: str = '',
  ):
    self._name, self._link, self._channel = name, link, channel
    self._outbox, self._credentials, self._meter = outbox, credentials, meter
    self._timeout, self._connections = timeout, Connections(credentials)
    self._broken: dict[Relays, float] = {}  # Time until which each is avoided.
    self._generation = 0
    self._step: int | None = None
    self._served: Key | None = None  # The last exchange.
    self._was_admitted = self._now.admissions > 0
    self.exchanged = False

  @property
  def _now(self) -> Membership:
    now = self._link.member.membership
    assert now
    return now

  @property
  def view(self) -> View:
    """The islands that are members now."""
    now = self._now
    names = tuple(now.islands)
    return View(
      names,
      names.index(self._name),
      now.slots,
      prepares=not now.generation,
      was_admitted=self._was_admitted,
      admits=self._link.member.admits,
      exchanged=self.exchanged,
    )

  @property
  def agreement(self) -> Agreement:
    """This island's part in agreeing on the last step."""
    return self._link.agreement

  def channel(self, name: str) -> Peers:
    """Returns another channel, over separate connections."""
    return FlightPeers(
      self._name,
      self._link,
      self._outbox,
      self._credentials,
      self._meter,
      self._timeout,
      name,
    )

  def conclude(self) -> None:
    """Returns when all islands have completed their exchanges."""
    if self.exchanged:
      self._answer('commit')
      self._serve(None)
      self.exchanged = False

  def regroup(self) -> None:
    """Continues with the islands that are members now."""
    self._meter.add(aborts=1)
    self._enter(self._link.member.enter)

  def enter(self) -> None:
    """Joins the training islands when all are ready, if this one prepares."""
    if self.prepares:
      self._enter(self._link.member.enter_prepared)
      self._was_admitted = self._now.admissions > 0

  def admit(self) -> None:
    """Continues with joining islands, and without leaving ones."""
    self._enter(self._link.member.admit)

  def _enter(self, enter: Callable[[], Flow[None]]) -> None:
    """Continues with other islands, and with no earlier message in flight."""
    if self.late:
      self.late.settle()
    self._link.run(enter())
    self._outbox.clear()
    self._served, self.exchanged = None, False

  def exchange(
    self, messages: Sequence[np.ndarray], about: About | None = None
  ) -> list[np.ndarray]:
    """Serves the messages, and fetches messages of the other islands."""
    self._check_entered()
    if self._generation != self._now.generation:
      self._generation = self._now.generation
      there = {*self._now.islands.values()}
      there.update(*self._now.relays.values())
      self._connections.close_others(there)
    about = about or About('exchange', messages[0], messages)
    shape = None if about.varies else about.like.shape
    place = self._arrive('average', about.operation, about.like.dtype, shape)
    self.exchanged = True
    self._outbox.put(place.key, messages)
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
    return received

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
    shape: Sequence[int] | None = (),
    body: bytes | None = b'',
  ) -> Place:
    """Tells the coordinator that this island has arrived at a place."""
    name = np.dtype(dtype).name if dtype else ''
    arrive = self._link.member.arrive
    return self._link.do(
      arrive, kind, self._channel, operation, name, shape, body, self._step
    )

  def _answer(self, *arrival: Any) -> bytes:
    """Returns the answer at a place, when all islands have arrived there."""
    self._check_entered()
    return self._link.run(self._link.member.answer(self._arrive(*arrival)))

  def _check_entered(self) -> None:
    if self.prepares:
      raise RunError('this island only prepares; it must enter first')

  def share(self, message: np.ndarray) -> list[np.ndarray]:
    """Sends a small message to all islands through the coordinator."""
    size, count = message.nbytes, self.size
    whole = self._vote('gather', message)
    return [
      np.frombuffer(whole[i * size : (i + 1) * size], message.dtype).reshape(
        message.shape
      )
      for i in range(count)
    ]

  def fold(self, operation: str, message: np.ndarray) -> np.ndarray:
    """Folds small messages of all islands at the coordinator."""
    whole = self._vote(operation, message)
    return np.frombuffer(whole, message.dtype).reshape(message.shape).copy()

  def _vote(self, operation: str, message: np.ndarray) -> bytes:
    whole = self._answer(
      'vote', operation, message.dtype, message.shape, message.tobytes()
    )
    self._meter.add(sent_bytes=message.nbytes, received_bytes=len(whole))
    return whole

  def land(self, arrive: Callable[[], bool]) -> bool:
    """Returns whether a delayed average has arrived on all islands."""
    self._check_entered()
    place = self._arrive('landing', 'pmin', 'bool', (), None)
    vote = bytes([arrive()])
    self._link.do(self._link.member.vote, place, vote)
    return self._link.run(self._link.member.answer(place)) == b'\1'

  def departs(self) -> None:
    """Notes in which step this channel's next exchange departs."""
    self._step = self._meter.step

  def reach(self, step: int) -> None:
    """Notes the last step that this island has taken."""
    self._meter.step = step

  def averaged(self) -> None:
    """Notes that an average has been applied."""
    self._meter.add(averages=1)

  def close(self, finished: bool = True) -> None:
    """Leaves, when all islands have fetched this island's messages.

    Raises:
      ApartError: if the others are not about to leave.
    """
    member = self._link.member
    try:
      self.complete(lambda _: self._link.run(member.leave(finished)))
    except ApartError:
      raise
    except (RunError, Stopped):
      pass
    finally:
      self._link.close(member.fail)
      self._outbox.shutdown()

  def fail(self, why: str = '') -> None:
    """Leaves at once; the others hear that this island has failed, and why."""
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
    """Returns an island's message, which may come in several pieces.

    After the first piece, each route to the island carries one at a time.
    """
    like = about.received[sender]
    head, first = self._call(place, sender, 0)
    found, dtype = head[b'dtype'].decode(), about.like.dtype
    shape = json.loads(head[b'shape'])
    if found != dtype.name or (like is not None and shape != [*like.shape]):
      size = ','.join(map(str, shape))
      self._report(place, sender, f'{found}[{size}] at {place}')
    starts = range(PIECE, math.prod(shape) * dtype.itemsize, PIECE)
    rest, pieces = iter(starts), {0: first}
    ways = {
      way: threading.Thread(
        target=self._fetch_over,
        args=(way, place, sender, rest, pieces),
        daemon=True,
      )
      for way in self._ways(self.names[sender])[: len(starts)]
    }
    for thread in ways.values():
      thread.start()
    try:
      for start in rest:
        pieces[start] = self._call(place, sender, start)[1]
    finally:
      for way, thread in ways.items():
        thread.join(LATE)
        if thread.is_alive():
          self._leave_out(way)
    for start in starts:
      if start not in pieces:  # A route has failed, or is late.
        pieces[start] = self._call(place, sender, start)[1]
    blocks = itertools.chain(pieces[0], *(pieces[start] for start in starts))
    parts = [np.frombuffer(block, np.uint8) for block in blocks]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if whole.nbytes != math.prod(shape) * dtype.itemsize:
      self._report(place, sender, f'{whole.nbytes} bytes at {place}')
    return whole.view(dtype).reshape(shape)

  def _ways(self, name: str) -> list[Relays]:
    """Returns the routes to an island over relays, except failed ones."""
    own, its = (['', *self._now.relays[n]] for n in (self._name, name))
    pairs = [
      (own[p % len(own)], its[p % len(its)])
      for p in range(1, max(len(own), len(its)))
    ]
    ways = [tuple(relay for relay in pair if relay) for pair in pairs]
    now = time.monotonic()
    return [way for way in ways if self._broken.get(way, now) <= now]

  def _fetch_over(
    self,
    way: Relays,
    place: Place,
    sender: int,
    starts: Iterator[int],
    pieces: dict[int, list[Any]],
  ) -> None:
    """Fetches pieces over relays until none is left, or until the route fails.

    Args:
      way: the relays.
      place: the place of the exchange.
      sender: index of the island that sends the message.
      starts: offsets in bytes of the pieces that are still to be fetched.
      pieces: blocks of each piece that has arrived, by offset.
    """
    with contextlib.suppress(Regrouped, RunError, Stopped):
      for start in starts:
        try:
          pieces[start] = self._attempt(way, place, sender, start)[1]
        except ERRORS:
          self._link.check()  # If it raises, the call has been cancelled.
          self._leave_out(way)
          return

  def _leave_out(self, way: Relays) -> None:
    """Avoids a route for a while, and then uses it over a new connection."""
    self._connections.forget(way[0])
    self._broken[way] = time.monotonic() + MENDING

  def _report(self, place: Place, sender: int, why: str) -> None:
    """Reports a wrong message; then one of the two islands ends."""
    self._link.do(
      self._link.member.accuse, place, self.names[sender], why[:200]
    )
    while True:  # Until this raises.
      self._link.check()
      time.sleep(0.05)

  def _call(
    self, place: Place, sender: int, start: int
  ) -> tuple[Any, list[Any]]:
    """Returns the metadata and the blocks of a piece of a message.

    Waits for a message that is not ready yet, as long as the sender lives. If
    one of the two cannot reach the other, even over a new connection, the
    coordinator ends one of them.
    """
    name, member = self.names[sender], self._link.member
    # Before that, the coordinator ends an island that is silent everywhere.
    unreached, is_new, accuses = None, False, False
    while True:
      self._link.check()
      began = time.monotonic()
      try:
        found = self._attempt((), place, sender, start)
        if accuses:
          self._link.do(member.acquit, name)
        return found
      except flight.FlightTimedOutError:
        self._link.check()  # The sender may have ended meanwhile.
        is_silent, unreached = time.monotonic() - began >= self._patience, None
        if is_silent and not is_new:  # Networks forget idle connections.
          self._connections.close(self._now.islands[name])
          is_new = True
        elif is_silent:
          self._link.do(member.accuse, place, name)
          accuses = True
      except ERRORS:
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
    self, relays: Relays, place: Place, sender: int, start: int
  ) -> tuple[Any, list[Any]]:
    """Returns the result of `_call`, from one attempt."""
    own = self._now.islands[self.names[sender]]
    key = place.key, self.index, start
    address, command = call_over([*relays, own], json.dumps(key))
    writer, reader = self._connections.call(address, command, self._patience)
    with writer, self._link.cancelling(reader.cancel):
      about = reader.schema.metadata
      chunks, size = [], 0
      for chunk in reader:
        chunks.append(chunk.data.column(0)[0].as_buffer())
        size += chunks[-1].size
        if size > PIECE:
          self._report(place, sender, f'more than it should at {place}')
    self._meter.add(received_bytes=sum(chunk.size for chunk in chunks))
    return about, chunks
