"""An island's side of the protocol."""

import collections
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.messages import Key, Place
from selsync_jax.config import LostError, RunError, Stopped

Result = TypeVar('Result')
Flow = Generator[None, None, Result]
"""A function that waits: after it yields, the member must change first."""


class FinishedError(RunError):
  """The others have finished the run without this island."""

  code = 0


class ApartError(RunError):
  """Islands have arrived at different places."""


class Regrouped(Exception):
  """Islands have ended or the coordinator was started again: repeat the work.

  See `program.complete`.
  """


class Member:
  """State machine of an island.

  Events are `opened`, `hear` and `tick`; `outgoing` has the messages to send.
  A caller of a `Flow` resumes it after each event.

  Args:
    join: how this island introduces itself.
    address: address of the coordinator, for messages to the user.

  Attributes:
    outgoing: messages that the transport sends next.
    membership: generation that this island has entered.
    upcoming: a newer generation.
    admits: whether islands wait for `admit`, to join or to leave.
    error: reason why this island has ended.
    waits: line about the islands that this one waits for.
    is_asked: whether this island was asked to stop.
    last: step after which all stop, once it is known.
    done: work that the island has done since it joined.
  """

  def __init__(self, join: messages.Join, address: str):
    self.join, self.address = join, address
    self.outgoing: collections.deque[Any] = collections.deque()
    self.membership: messages.Membership | None = None
    self.upcoming: messages.Membership | None = None
    self.error: RunError | Stopped | None = None
    self.admits, self.waits, self.done = False, '', messages.Alive()
    self.is_asked, self._passed = False, -1
    self._reached: int | None = None
    self.last: int | None = None
    self._counts: dict[str, int] = {}
    self._answers: dict[Key, bytes] = {}
    self._heard: dict[str, messages.Answer] = {}
    self._is_open, self._now = False, 0.0
    self._heard_at = self._said_at = self._reported_at = 0.0

  @property
  def prepares(self) -> bool:
    """Whether the others train, and have not admitted this island yet."""
    return self.membership is None or not self.membership.generation

  def opened(self) -> None:
    """Introduces this island over a new connection, and says all it knows."""
    self.outgoing.clear()
    self._is_open = True
    now, known = self.upcoming or self.membership, None
    if now and now.generation:
      known = messages.Known(
        now,
        self.admits,
        [*self._heard.values()],
        self._reached,
        self.last,
      )
    self._say(messages.changed(self.join, known=known))
    if isinstance(self.error, RunError):
      self._say(messages.Failed(str(self.error)))
    elif self.is_asked and self.last is None:
      self._say(messages.Stop())

  def lost(self, why: str = '', is_stranger: bool = False) -> None:
    """Notes that the connection is lost; the transport makes another one.

    If the other end `is_stranger`, not the coordinator, this island ends.
    """
    self._is_open = False
    self.outgoing.clear()
    if is_stranger:
      self.end(RunError(f'the coordinator {self.address} {why}'))

  def tick(self, now: float) -> None:
    """Checks for silence, and sends a sign of life when one is due.

    Any message is one. But an island that often says something else must still
    report its work from time to time.
    """
    self._now, timeout = now, self.join.timeout
    if now - self._heard_at > timeout and not self.error:
      self._miss(timeout)
    is_silent = now - self._said_at >= timeout / 10
    if self._is_open and (is_silent or now - self._reported_at >= timeout / 4):
      self._say(self.done)
      self._reported_at = now

  def _miss(self, timeout: float) -> None:
    """Ends this island, because the coordinator is silent."""
    line = f'the coordinator has not answered for {timeout:g} s'
    self.fail(line)
    self.error = RunError(line)

  def hear(self, message: messages.Message, now: float) -> None:
    """Handles a message of the coordinator."""
    self._now = self._heard_at = now
    match message:
      case messages.Answer(key, admits, body):
        self.admits |= admits
        self._answers[key] = body
        self._heard[key[1]] = message
      case messages.Membership():
        self.upcoming = message
        if self.is_asked and self.last is None:
          self._say(messages.Stop())  # The first may have been lost.
      case messages.Stop():
        if self._reached is None:
          self._reached = self._passed
        self._say(messages.Reached(self._reached))
      case messages.Last(step):
        self.last = step
      case messages.Sign(waits):
        self.waits = waits
      case messages.Ended():
        self._hear_end(message)

  def _hear_end(self, ended: messages.Ended) -> None:
    line, kind = ended.line, ended.kind
    if kind == 'refused':
      line = f'the coordinator {self.address}: {line}'
    if kind == 'left':
      self.end(Stopped('left after a signal; the others continue'))
    elif kind == 'finished':
      self.end(FinishedError(f'the coordinator {self.address}: {line}'))
    elif self.is_asked and kind in ('lost', 'refused'):
      # It was released without hearing of it.
      self.end(Stopped(f'left after a signal; {line}'))
    elif kind == 'apart':
      self.end(ApartError(line))
    else:
      self.end(LostError(line) if kind == 'lost' else RunError(line))

  def end(self, error: RunError | Stopped) -> None:
    """Ends this island with an error, unless it has one already."""
    self.error = self.error or error

  def fail(self, why: str = '', code: int = 1) -> None:
    """Ends this island with an error, and tells the others."""
    if not self.error:
      self._say(messages.Failed(why, code))
    self.end(RunError(why or 'this island has failed'))

  def check(self) -> None:
    """Raises the error that a flow would raise now, if any."""
    if self.error:
      raise self.error
    if self.upcoming:
      raise Regrouped

  def arrive(
    self,
    kind: messages.Kind,
    channel: str = '',
    operation: str = '',
    dtype: str = '',
    shape: Sequence[int] = (),
    body: bytes | None = b'',
    step: int | None = None,
  ) -> Place:
    """Reports that this island has arrived at its next place on a channel."""
    assert self.membership
    self._counts[channel] = self._counts.get(channel, 0) + 1
    place = Place(
      self.membership.generation,
      channel,
      self._counts[channel],
      (self.done.step if step is None else step) or None,
      kind,
      operation,
      dtype,
      tuple(shape),
    )
    self.vote(place, body)
    return place

  def vote(self, place: Place, body: bytes | None) -> None:
    """Sends this island's vote at a place."""
    self._say(messages.Arrived(place, body))

  def answer(self, place: Place) -> Flow[bytes]:
    """Returns the answer at a place where all islands arrive.

    Raises:
      Regrouped: if a new generation of islands has begun.
      RunError: if this island has ended.
      Stopped: if this island has left because it was asked to.
    """
    while place.key not in self._answers:
      self.check()
      yield
    return self._answers.pop(place.key)

  def enter(self) -> Flow[None]:
    """Enters the newest generation of islands, as soon as a new one begins.

    Raises:
      RunError: if this island is refused, or has ended.
      FinishedError: if the run has finished.
    """
    while not self.upcoming:
      if self.error:
        raise self.error
      yield
    if self.membership and (
      self.membership.admissions < self.upcoming.admissions
    ):
      self.admits = False
    self.membership, self.upcoming = self.upcoming, None
    self.reach(self.done.step)
    self._counts.clear()
    self._answers.clear()

  def enter_prepared(self) -> Flow[None]:
    """Enters the generation that admits this island, now that it can train."""
    while self.prepares:
      self.arrive('enter')
      yield from self.enter()

  def admit(self) -> Flow[None]:
    """Enters the generation after islands have joined and left.

    All islands call it after the same step, except islands that die meanwhile.
    """
    assert self.membership
    before = self.membership.admissions
    while self.membership.admissions == before:
      if not self.upcoming:
        self.arrive('admit')
      yield from self.enter()

  def leave(self, finished: bool) -> Flow[None]:
    """Returns when all islands are about to leave.

    Args:
      finished: whether the run has finished; otherwise, all may rejoin.
    """
    yield from self.answer(self.arrive('leave', body=b'1' * finished))
    self.end(RunError('this island has left'))  # It ignores later messages.

  def ask(self) -> None:
    """Asks all islands to stop, or to continue without this one."""
    self.is_asked = True
    self._say(messages.Stop())

  def stops_after(self, step: int) -> Flow[bool]:
    """Returns whether all stop after this step; waits while they agree."""
    while self._reached is not None and self.last is None:
      if self.error:
        raise self.error
      yield
    if self.error:
      raise self.error
    self._passed = step
    return self.last is not None and step >= self.last

  def reach(self, step: int) -> None:
    """Notes the last step that this island has taken."""
    generation = self.membership.generation if self.membership else 0
    self.done = messages.changed(self.done, generation=generation, step=step)

  def accuse(self, place: Place, name: str, why: str = '') -> None:
    """Reports that an island's message at a place is unavailable."""
    self._say(messages.Accused(place.key, name, why))

  def acquit(self, name: str) -> None:
    """Withdraws an accusation of `accuse`."""
    self._say(messages.Acquitted(name))

  def _say(self, message: messages.Message) -> None:
    if self._is_open:
      self._said_at = self._now
      self.outgoing.append(message)
