"""An island's connection to the meeting point, for what is small.

Signs of life, votes, the step after which all stop, and who has ended travel on
it. It is a stream of its own with threads of its own, so that none of these
ever waits behind data.

If the meeting point is killed, the island goes on until it needs the others,
and looks for it meanwhile. Started again, the point learns from the islands
what it knew, and they are another generation: see `standing`.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
import contextlib
import dataclasses
import json
import threading
from typing import Any

from selsync_jax.cluster.agreement import Agreement
from selsync_jax.cluster.channel import LEFT
from selsync_jax.config import LostError, RunError, Stopped
from selsync_jax.islands.flight import call_options, ERRORS, flight
from selsync_jax.islands.meter import Meter
from selsync_jax.islands.peers import Regrouped
from selsync_jax.islands.standing import Key, Shared, Standing

BEAT = 0.25
"""Seconds from one sign of life to the next."""

PAUSE = 0.2
"""Seconds from one attempt to find the meeting point to the next."""

FAREWELL = 2.0
"""Seconds that an island which ends waits for the meeting point."""

Head = Mapping[str, Any]
"""What a message is about: values of JSON."""


class FinishedError(RunError):
  """An error that the others have finished the run without this island."""

  code = 0


@dataclasses.dataclass(frozen=True)
class Member:
  """An island, as it says of itself.

  Attributes:
    name: unique in the run.
    address: `host:port` where it serves its messages.
    run: a digest of what it is about to run.
    timeout: seconds until an island that is silent counts as lost.
    welcomes: whether it lets others in while it runs; see `Control.admit`.
    slot: the place that it has had among the run's islands, if it knows one.
    relays: `host:port` of each `Relay` in its other processes.
  """

  name: str
  address: str
  run: str
  timeout: float
  welcomes: bool
  slot: int | None = None
  relays: Sequence[str] = ()


def encode(head: Head, body: bytes = b'') -> bytes:
  """Returns a message: its head in a line, and then bytes."""
  return json.dumps(head).encode() + b'\n' + body


def decode(chunk: flight.FlightStreamChunk) -> tuple[Head, bytes]:
  """Inverts `encode`; `ValueError` if it is something else."""
  head, _, body = chunk.app_metadata.to_pybytes().partition(b'\n')
  return json.loads(head), body


class Control:
  """The connection to the meeting point, as an island has it.

  Args:
    point: a client of the meeting point.
    address: its address, for messages.
    token: the run's token.
    member: this island.
    meter: what it counts, of which its signs of life tell.

  Attributes:
    admits: whether some wait for `admit`. It may change while islands share
      anything, after the same share on all.
    agreement: this island's part in the step after which all stop.
  """

  def __init__(
    self,
    point: flight.FlightClient,
    address: str,
    token: str,
    member: Member,
    meter: Meter,
  ):
    self._member, self._meter = member, meter
    self._point, self._address, self._token = point, address, token
    self._sending, self._left = threading.Lock(), threading.Event()
    self._changed = threading.Condition()
    self._silent = 0.0  # Counted, as this process itself may be frozen.
    self._now: Head = {}  # The generation that this island has entered.
    self._next: Head | None = None  # A newer one.
    self._shares: dict[Key, bytes] = {}
    self._heard: dict[str, Shared] = {}  # The last share, by channel.
    self._counts: dict[str, int] = {}  # Of shares, by channel.
    self._calls: list[Callable[[], None]] = []  # What cancels each.
    self._error: RunError | Stopped | None = None
    self._farewell: Head = {'failed': True}
    self._opened = threading.Event()
    self.admits = False
    self._ready = -1  # The admissions before the one that it waits for.
    self.agreement = Agreement(self._send)
    self._open()
    self._listening, counting = (
      threading.Thread(target=work, daemon=True)
      for work in (self._listen, self._count_silence)
    )
    self._listening.start()
    counting.start()

  def enter(self) -> Head:
    """Enters the newest generation of islands, and returns it.

    It waits for the first one, and then for another. That of number 0 is of
    this island alone, which prepares; see `ask_to_enter`.

    Raises:
      RunError: if this island is refused.
      FinishedError: if it is because there is nothing left to do.
    """

    def newest():
      if not self._next:
        return None
      # Both at once, as another thread may tell of them: see `_standing`.
      self._now, self._next = self._next, None
      return self._now

    self._wait(newest)
    self._counts.clear()
    return self._now

  def ask_to_enter(self) -> Head:
    """Enters the generation that lets this island in, now that it can train."""
    self._send({'enter': True})
    return self.enter()

  def admit(self) -> Head:
    """Enters the generation after comings and leavings, and returns it.

    All islands call it after the same step, when `admits` is set. One that dies
    meanwhile is not waited for.
    """
    before = self._now['admissions']
    with self._changed:
      self.admits, self._ready = False, before
    self._send({'ready': before})
    while self.enter()['admissions'] == before:
      pass
    return self._now

  def share(
    self, channel: str, message: bytes, patient: bool = False
  ) -> list[bytes]:
    """Sends bytes to all islands, and returns those of each; all equally many.

    See `Peers.share` for the arguments.

    Raises:
      Regrouped: if there is another generation of islands.
      RunError: if this island has ended or only prepares, if the meeting point
        does not come back in time, or if the others share something else.
      Stopped: if this island has left, as it was asked to.
    """
    if not self._now['generation']:
      raise RunError('this island only prepares; it must enter first')
    number = self._counts[channel] = self._counts.get(channel, 0) + 1
    key = self._now['generation'], channel, number
    self._send({'share': key, 'patient': patient}, message)
    whole = self._wait(lambda: self._shares.pop(key, None))
    size, count = len(message), len(self._now['islands'])
    if len(whole) != size * count:
      raise RunError('the islands have come to different places')
    return [whole[i * size : (i + 1) * size] for i in range(count)]

  def check(self) -> None:
    """Raises what `share` would raise now."""
    if self._error:
      raise self._error
    if self._next:
      raise Regrouped

  @contextlib.contextmanager
  def cancelling(self, cancel: Callable[[], None]) -> Generator[None]:
    """In this context, cancels a call as soon as `check` would raise."""
    with self._changed:
      self._calls.append(cancel)
      self._notify()  # It may be too late already.
    try:
      yield
    finally:
      with self._changed:
        self._calls.remove(cancel)

  def accuse(self, name: str) -> None:
    """Says that an island cannot be reached; one of the two is then ended."""
    self._send({'unreached': name, 'generation': self._now['generation']})

  def acquit(self, name: str) -> None:
    """Takes back what `accuse` has said."""
    self._send({'reached again': name})

  def fail(self) -> None:
    """Ends this island with an error, of which all hear."""
    self._end(RunError('this island has failed'))
    self._left.set()
    self._part()
    self._listening.join(FAREWELL)
    if self._listening.is_alive():  # The meeting point does not read yet.
      self._reader.cancel()

  def leave(self, finished: bool) -> None:
    """Ends the connection; call it when all islands are about to.

    They have finished the run, or come again.
    """
    self._farewell = {'left': True, 'finished': finished}
    self._left.set()
    self._part()
    self._end(RunError('this island has left'))  # Nothing need arrive now.

  def _part(self) -> None:
    """Says farewell; if the connection is just made, as soon as it is."""
    self._opened.wait(FAREWELL)
    self._send(self._farewell)

  def _open(self) -> None:
    """Connects to the meeting point."""
    self._opened.clear()
    try:
      self._introduce()
    finally:
      self._opened.set()

  def _introduce(self) -> None:
    """Says who this island is, and what the meeting point may have missed."""
    with self._changed:
      standing = self._standing()
    hello: dict[str, Any] = dataclasses.asdict(self._member)
    hello['standing'] = standing and standing.to_json()
    writer, reader = self._point.do_exchange(  # A silent host takes long.
      flight.FlightDescriptor.for_path('join'), call_options(self._token, None)
    )
    with self._sending:  # Nothing else may be the first that it says.
      self._writer, self._reader = writer, reader
      with contextlib.suppress(*ERRORS):
        self._writer.write_metadata(encode(hello))
    if self._error or self._left.is_set():  # Just now.
      self._send(self._farewell)
    if standing and standing.admits and self._ready == standing.admissions:
      self._send({'ready': self._ready})
    if self.agreement.is_asked and self.agreement.last is None:
      self._send({'stop': True})

  def _standing(self) -> Standing | None:
    """What this island knows of its run; `None` if it is in none yet."""
    now = self._next or self._now
    if not now:
      return None
    return Standing(
      generation=now['generation'],
      circle=now['circle'],
      islands=now['islands'],
      slots=now['slots'],
      admissions=now['admissions'],
      admits=self.admits or self._ready == now['admissions'],
      heard=list(self._heard.values()),
      reached=self.agreement.reached,
      last=self.agreement.last,
    )

  def _send(self, head: Head, body: bytes = b'') -> None:
    """Sends a message; `_listen` notices if nobody is there."""
    with self._sending, contextlib.suppress(*ERRORS):
      self._writer.write_metadata(encode(head, body))

  def _wait(self, find: Callable[[], Any]) -> Any:
    """Returns what `find` returns as soon as that is not `None`."""
    with self._changed:
      while (found := find()) is None:
        self.check()
        self._changed.wait()
    return found

  def _end(self, error: RunError | Stopped) -> None:
    """Ends this island with an error, unless it has one."""
    with self._changed:
      self._error = self._error or error
      self._notify()
    self.agreement.fail(self._error)

  def _listen(self) -> None:
    """Hears the meeting point, until this island leaves or ends."""
    while True:
      try:
        self._hear(*decode(self._reader.read_chunk()))
      except (StopIteration, *ERRORS):
        if self._error or self._left.wait(PAUSE):
          return
        if (self._next or self._now).get('generation') == 0:
          return self._end(RunError('the meeting point is gone'))
        with contextlib.suppress(*ERRORS):
          self._open()

  def _hear(self, head: Head, body: bytes) -> None:
    self._silent = 0.0
    if not head:  # All answer at once, so that their steps can be compared.
      self._send(self._meter.read())
    if head.get('fate') == LEFT:
      self._end(Stopped('left after a signal; the others go on'))
    elif 'ended' in head:
      self._end_for(f'island {head["ended"]} {head["fate"]}', head)
    elif 'refused' in head:
      self._end_for(
        f'the meeting point {self._address}: {head["refused"]}', head
      )
    elif 'closes' in head:  # Only here: gRPC aborts if it is read meanwhile.
      with self._sending, contextlib.suppress(*ERRORS):
        self._writer.done_writing()
    self.agreement.hear(head)
    with self._changed:
      if 'shared' in head:
        share = Shared(tuple(head['shared']), head['admits'], body)
        self.admits |= share.admits
        self._shares[share.key] = body
        self._heard[share.key[1]] = share
      elif 'islands' in head:
        self._next = head
      self._notify()

  def _end_for(self, line: str, head: Head) -> None:
    """Ends this island for what the meeting point says."""
    if head.get('finished'):
      self._end(FinishedError(line))
    elif self.agreement.is_asked and (head.get('lost') or 'refused' in head):
      # It has been let go, and has not heard it, or went without a word.
      self._end(Stopped(f'left after a signal; {line}'))
    else:
      self._end(LostError(line) if head.get('lost') else RunError(line))

  def _notify(self) -> None:
    """Wakes whoever waits, also for another island that does not answer."""
    self._changed.notify_all()
    if self._error or self._next:
      for cancel in self._calls:
        cancel()

  def _count_silence(self) -> None:
    """Ends this island when the meeting point has been silent for too long."""
    while not (self._left.wait(BEAT) or self._error):
      self._silent += BEAT
      if self._silent > 2 * BEAT:  # The host may be another one, and say so.
        self._send({})
      if self._silent > self._member.timeout:
        self._end(RunError('the meeting point does not answer'))
