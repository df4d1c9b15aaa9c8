"""Messages between islands over Arrow Flight.

Each island serves the messages that it has for others, and fetches what they
have for it, from several islands at a time, so that one that is late leaves no
link idle.
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
from selsync_jax.islands.control import Control, Head
from selsync_jax.islands.flight import Connections, Credentials, ERRORS, flight
from selsync_jax.islands.meter import Meter
from selsync_jax.islands.outbox import Key, Outbox, PATIENCE, PIECE
from selsync_jax.islands.peers import Peers, Regrouped, View
from selsync_jax.islands.relay import call_over

Relays = tuple[str, ...]
"""The addresses of the relays on a way; none if it is direct."""

FLOWS = 4
"""Messages that an island fetches at a time."""

LATE = 10.0
"""Seconds that the last pieces may need over relays, when others are there."""

MENDING = 300.0
"""Seconds for which a way over relays is not used after it has failed."""


class Members:
  """The islands that are there, for all channels of one island.

  Args:
    generation: what the meeting point says of a generation.

  Attributes:
    was_admitted: whether this island was not in the first one of all.
    generation: its number; 0 while this island prepares.
    addresses: every island's `host:port` by name, in the order of the indices.
    relays: the addresses of its `Relay`s, by name.
    slots: the names of all islands of the run, see `Peers.slots`.
    calls: whether they say when they have come to an average, see `meet`.
  """

  was_admitted: bool
  generation = 0
  addresses: dict[str, str]
  relays: dict[str, list[str]]
  slots: list[str]
  calls: bool

  def __init__(self, generation: Head):
    self.enter(generation)

  def enter(self, generation: Head) -> None:
    """Goes on with the islands of another generation."""
    if not self.generation:
      self.was_admitted = generation['admissions'] > 0
    self.generation = generation['generation']
    self.addresses = generation['islands']
    self.relays = generation['relays']
    self.slots, self.calls = generation['slots'], generation['calls']


class FlightPeers(Peers):
  """Islands that serve and fetch messages.

  Args:
    name: this island's name.
    members: the islands that are there.
    outbox: this island's outbox.
    control: its connection to the meeting point.
    credentials: the run's credentials.
    meter: counts what is sent and received, and the steps.
    timeout: seconds until an island that cannot be reached is an error.
    channel: the channel's name; exchanges of different ones are independent.

  Attributes:
    exchanged: whether the others may not have completed an exchange yet.
  """

  def __init__(
    self,
    name: str,
    members: Members,
    outbox: Outbox,
    control: Control,
    credentials: Credentials,
    meter: Meter,
    timeout: float = 60.0,
    channel: str = '',
  ):
    self._name, self._members, self._channel = name, members, channel
    self._outbox, self._control = outbox, control
    self._credentials, self._meter = credentials, meter
    self._timeout, self._connections = timeout, Connections(credentials)
    self._broken: dict[Relays, float] = {}  # Until when they are not used.
    self._generation = self._count = 0  # Exchanges in a generation.
    self.exchanged = False

  @property
  def view(self) -> View:
    """The islands that are there now."""
    there, names = self._members, tuple(self._members.addresses)
    return View(
      names,
      names.index(self._name),
      there.slots,
      prepares=not there.generation,
      was_admitted=there.was_admitted,
      admits=self._control.admits,
      exchanged=self.exchanged,
    )

  @property
  def agreement(self) -> Agreement:
    """This island's part in the step after which all stop."""
    return self._control.agreement

  def channel(self, name: str) -> Peers:
    """Returns another channel, over connections of its own."""
    return FlightPeers(
      self._name,
      self._members,
      self._outbox,
      self._control,
      self._credentials,
      self._meter,
      self._timeout,
      name,
    )

  def conclude(self) -> None:
    """Returns when all islands have completed what they exchange."""
    if self.exchanged:
      self.share(np.zeros(0), patient=True)
      self._outbox.drop(self._key(self._count))
      self.exchanged = False

  def regroup(self) -> None:
    """Goes on with the islands that are there now."""
    self._meter.add(aborts=1)
    self._enter(self._control.enter)

  def enter(self) -> None:
    """Goes among the others, if this island prepares, when they are ready."""
    while self.prepares:  # They may have ended and met again meanwhile.
      self._enter(self._control.ask_to_enter)

  def admit(self) -> None:
    """Goes on with those who come, and without those who leave."""
    self._enter(self._control.admit)

  def _enter(self, generation: Callable[[], Head]) -> None:
    """Goes on with other islands; nothing of before is on its way."""
    if self.late:
      self.late.settle()
    self._members.enter(generation())
    self._outbox.clear()
    self.exchanged = False

  def exchange(self, messages: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Serves the messages, and fetches those of the other islands."""
    if self._generation != self._members.generation:
      self._generation, self._count = self._members.generation, 0
      there = {*self._members.addresses.values()}
      there.update(*self._members.relays.values())
      self._connections.close_others(there)
    if not (self.exchanged or self._channel):
      self.meet()
    self._count, self.exchanged = self._count + 1, True
    self._outbox.put(self._key(self._count), messages)
    senders = [(self.index + i) % self.size for i in range(1, self.size)]
    calls = {sender: futures.Future[np.ndarray]() for sender in senders}
    rest = iter(senders)
    for _ in senders[:FLOWS]:  # No pool: it takes no work as a process ends.
      threading.Thread(
        target=self._fetch_each, args=(rest, calls), daemon=True
      ).start()
    futures.wait(calls.values())
    received = [*messages]
    for sender, call in calls.items():
      received[sender] = call.result()
    # Who has sent its messages of this exchange has all of the one before.
    self._outbox.drop(self._key(self._count - 1))
    return received

  def meet(self) -> None:
    """Waits for the others, if some may go on without those that are late."""
    if self._members.calls and not self.prepares:
      self.share(np.zeros(0))

  def share(
    self, message: np.ndarray, *, patient: bool = False
  ) -> list[np.ndarray]:
    """Sends a small message to all islands through the meeting point."""
    patient |= self.exchanged and not self._channel
    shared = self._control.share(self._channel, message.tobytes(), patient)
    received = sum(map(len, shared))
    self._meter.add(sent_bytes=message.nbytes, received_bytes=received)
    return [
      np.frombuffer(each, message.dtype).reshape(message.shape)
      for each in shared
    ]

  def reach(self, step: int) -> None:
    """Notes the last step that this island has taken."""
    self._meter.step = step

  def averaged(self) -> None:
    """Notes that an average has been applied."""
    self._meter.add(averages=1)

  def close(self, finished: bool = True) -> None:
    """Leaves, when all have fetched what this island has sent them."""
    with contextlib.suppress(RunError, Stopped):
      self.complete(lambda peers: peers.share(np.zeros(0)))
    self._control.leave(finished)
    self._outbox.shutdown()

  def fail(self) -> None:
    """Leaves at once; the others hear that this island has failed."""
    self._control.fail()
    self._outbox.shutdown()

  def _key(self, count: int) -> Key:
    return self._generation, self._channel, count

  def _fetch_each(
    self,
    senders: Iterator[int],
    calls: Mapping[int, futures.Future[np.ndarray]],
  ) -> None:
    """Fetches messages as long as there are senders left."""
    for sender in senders:
      try:
        calls[sender].set_result(self._fetch(sender))
      except BaseException as error:
        calls[sender].set_exception(error)

  def _fetch(self, sender: int) -> np.ndarray:
    """Returns the message of an island, in however many pieces it comes.

    After the first one, each way to the island carries one at a time.
    """
    about, first = self._call(sender, 0)
    dtype = np.dtype(about[b'dtype'].decode())
    shape = json.loads(about[b'shape'])
    starts = range(PIECE, math.prod(shape) * dtype.itemsize, PIECE)
    rest, pieces = iter(starts), {0: first}
    ways = {
      way: threading.Thread(
        target=self._fetch_over, args=(way, sender, rest, pieces), daemon=True
      )
      for way in self._ways(self.names[sender])[: len(starts)]
    }
    for thread in ways.values():
      thread.start()
    try:
      for start in rest:
        pieces[start] = self._call(sender, start)[1]
    finally:
      for way, thread in ways.items():
        thread.join(LATE)
        if thread.is_alive():
          self._leave_out(way)
    for start in starts:
      if start not in pieces:  # A way has failed, or is late.
        pieces[start] = self._call(sender, start)[1]
    blocks = itertools.chain(pieces[0], *(pieces[start] for start in starts))
    parts = [np.frombuffer(block, np.uint8) for block in blocks]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return whole.view(dtype).reshape(shape)

  def _ways(self, name: str) -> list[Relays]:
    """Returns the ways to an island over relays, but those that have failed."""
    own, its = (['', *self._members.relays[n]] for n in (self._name, name))
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
    sender: int,
    starts: Iterator[int],
    pieces: dict[int, list[Any]],
  ) -> None:
    """Fetches pieces over relays as long as some are left, or until it fails.

    Args:
      way: the relays.
      sender: the index of the island whose message it is.
      starts: the offsets in bytes of pieces that nobody fetches yet.
      pieces: the blocks of each piece that has come, by its offset.
    """
    for start in starts:
      try:
        pieces[start] = self._attempt(way, sender, start)[1]
      except ERRORS:
        with contextlib.suppress(Regrouped, RunError, Stopped):
          self._control.check()  # If it raises, the call has been cancelled.
          self._leave_out(way)
        return

  def _leave_out(self, way: Relays) -> None:
    """Does not use a way for a while, and then over a new connection."""
    self._connections.forget(way[0])
    self._broken[way] = time.monotonic() + MENDING

  def _call(self, sender: int, start: int) -> tuple[Any, list[Any]]:
    """Returns the metadata and the blocks of a piece of a message.

    It waits for a message that is not there yet as long as the sender lives. If
    one of the two cannot reach the other, over a new connection either, the
    meeting point ends one.
    """
    name = self.names[sender]
    # Of one that is silent everywhere, the meeting point says so before.
    unreached, is_new, accuses = None, False, False
    while True:
      self._control.check()
      began = time.monotonic()
      try:
        found = self._attempt((), sender, start)
        if accuses:
          self._control.acquit(name)
        return found
      except flight.FlightTimedOutError:
        self._control.check()  # It may have ended meanwhile.
        is_silent, unreached = time.monotonic() - began >= self._patience, None
        if is_silent and not is_new:  # Networks forget idle connections.
          self._connections.close(self._members.addresses[name])
          is_new = True
        elif is_silent:
          self._control.accuse(name)
          accuses = True
      except ERRORS:
        self._control.check()
        unreached = unreached or began
        if time.monotonic() - unreached >= self._timeout:
          self._control.accuse(name)
          accuses = True
        time.sleep(0.1)

  @property
  def _patience(self) -> float:
    """The seconds after which a call has failed."""
    return PATIENCE + 2 * self._timeout

  def _attempt(
    self, relays: Relays, sender: int, start: int
  ) -> tuple[Any, list[Any]]:
    """Returns what `_call` does, if one attempt is enough."""
    own = self._members.addresses[self.names[sender]]
    key = self._key(self._count), self.index, start
    address, command = call_over([*relays, own], json.dumps(key))
    writer, reader = self._connections.call(address, command, self._patience)
    with writer, self._control.cancelling(reader.cancel):
      about = reader.schema.metadata
      chunks = [chunk.data.column(0)[0].as_buffer() for chunk in reader]
    self._meter.add(received_bytes=sum(chunk.size for chunk in chunks))
    return about, chunks
