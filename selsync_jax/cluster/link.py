"""A member's connection to the coordinator."""

from collections.abc import Callable, Generator, Mapping
import contextlib
import socket
import threading
from typing import Any, TypeVar

from selsync_jax.cluster.connection import CLOSING, Frames, Loop
from selsync_jax.cluster.preemption import Agreement
from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.member import Flow, Member
from selsync_jax.config import RunError

PAUSE = 0.2
"""Seconds from one attempt to reach the coordinator to the next."""

FAREWELL = 2.0
"""Seconds for which an island that ends waits for the coordinator."""

Result = TypeVar('Result')


class Link:
  """Carries the messages of a `Member`, from any thread.

  Args:
    member: the member.
    dial: connects to the coordinator; raises `OSError` if that fails.
    frames: makes this end of a connection from the callables that `Frames`
      takes.
    say: takes a line when this member waits long for others, or by `say`.
    tls: arguments of `create_connection` for TLS.

  Attributes:
    member: the member; guarded by `changed`.
    changed: notified after each event.
    agreement: the member's part in the step after which all stop.
    called: takes the ticket of a caller that this member must dial back.
  """

  def __init__(
    self,
    member: Member,
    dial: Callable[[], socket.socket],
    frames: Callable[..., Frames],
    say: Callable[[str], None] = lambda line: None,
    tls: Mapping[str, Any] | None = None,
  ):
    self.member, self._dials, self._new = member, dial, frames
    self._say, self._tls = say, tls or {}
    self.changed = threading.Condition()
    self.agreement = LinkAgreement(self)
    self.called: Callable[[str], None] = lambda ticket: None
    self._frames: Frames | None = None
    self._cancels: list[Callable[[], None]] = []
    self._closes, self._closed = False, threading.Event()
    self._loop = Loop(self._tick, min(0.25, member.join.timeout / 20))
    self._dial()
    self._loop.start()

  def run(self, flow: Flow[Result]) -> Result:
    """Returns the result of a flow, as soon as the flow returns."""
    with self.changed:
      while True:
        try:
          next(flow)
        except StopIteration as done:
          return done.value
        finally:
          self._flush()
        self.changed.wait()

  def do(self, do: Callable[..., Result], *args: Any) -> Result:
    """Calls a method of the member, and sends the member's messages."""
    with self.changed:
      try:
        return do(*args)
      finally:
        self._flush()

  def count(self, **more: int) -> None:
    """Adds to the counts of the member's work; see `messages.Alive`."""
    with self.changed:
      done = self.member.done
      sums = {name: getattr(done, name) + n for name, n in more.items()}
      self.member.done = messages.changed(done, **sums)

  def say(self, line: str) -> None:
    """Says a line in a thread: a paused terminal must not block this one."""
    threading.Thread(target=self._say, args=(line,), daemon=True).start()

  def check(self) -> None:
    """Raises the error that a flow would raise now, if any."""
    with self.changed:
      self.member.check()

  @contextlib.contextmanager
  def cancelling(self, cancel: Callable[[], None]) -> Generator[None]:
    """In this context, cancels a call as soon as `check` would raise."""
    with self.changed:
      self._cancels.append(cancel)
      self._notify()  # Perhaps `check` raises already.
    try:
      yield
    finally:
      with self.changed:
        self._cancels.remove(cancel)

  def close(self, do: Callable[..., Any], *args: Any) -> None:
    """Ends the connection, after a last call of the member."""
    self.do(do, *args)
    with self.changed:
      self._closes = True
      self._notify()
    self._loop.call(self._close_frames)
    self._closed.wait(FAREWELL)
    self._loop.stop(FAREWELL)

  def _close_frames(self) -> None:
    """Closes the connection; if it is still being made, once it is open."""
    if self._frames:
      self._frames.transport.close()

  def _flush(self) -> None:
    """Sends the member's messages; the caller holds `changed`."""
    contents = [*map(messages.encode, self.member.outgoing)]
    self.member.outgoing.clear()
    if contents and self._frames:
      self._loop.call(self._frames.send, *contents)

  def _notify(self) -> None:
    """Wakes threads that wait, including calls to other islands."""
    self.changed.notify_all()
    if self.member.error or self.member.upcoming:
      for cancel in self._cancels:
        cancel()

  # The rest runs in the loop's thread, and in a thread that connects.

  def _tick(self, now: float) -> None:
    with self.changed:
      before = self.member.error
      self.member.tick(now)
      self._flush()
      if self.member.error is not before:
        self._notify()
        self._close_frames()

  def _dial(self) -> None:
    """Connects in a thread, because resolving an address may take long."""
    threading.Thread(target=self._connect, daemon=True).start()

  def _connect(self) -> None:
    try:
      plain = self._dials()
    except (OSError, UnicodeError) as error:  # No host may have that name.
      self._loop.call(self._lost, None, str(error))
    else:
      self._loop.call(self._loop.begin, self._secure, plain)

  async def _secure(self, plain: Any) -> None:
    try:
      await self._loop.loop.create_connection(
        lambda: self._new(self._opened, self._hear, self._lost),
        sock=plain,
        **self._tls,
      )
    except OSError as error:
      plain.close()
      self._lost(None, str(error))

  def _opened(self, frames: Frames) -> None:
    with self.changed:
      self._frames = frames
      self.member.opened()
      frames.send(*map(messages.encode, self.member.outgoing))
      self.member.outgoing.clear()
      if self._closes:
        frames.transport.close()

  def _hear(self, frames: Frames, content: bytes) -> None:
    with self.changed:
      try:
        before = self.member.waits
        message = messages.from_coordinator(content)
        self.member.hear(message, self._loop.now)
        if isinstance(message, messages.Called):
          self.called(message.ticket)
        if (line := self.member.waits) and not before:
          self.say(line)
      except ValueError:  # Another version serves there.
        line = f'the coordinator {self.member.address} runs another version'
        self.member.end(RunError(f'{line} of selsync_jax'))
        frames.transport.abort()
      self._flush()
      self._notify()

  def _lost(self, frames: Frames | None = None, why: str = '') -> None:
    stranger = frames.stranger if frames else ''
    with self.changed:
      self._frames = None
      before = self.member.error
      self.member.lost(stranger or why, bool(stranger))
      if self.member.error is not before:
        self._notify()
      if self._closes or self.member.error:
        self._closed.set()
        self._loop.loop.call_later(CLOSING, self._loop.loop.stop)
        return
    self._loop.loop.call_later(PAUSE, self._dial)


class LinkAgreement(Agreement):
  """A member's side of the agreement on the step after which all stop."""

  def __init__(self, link: Link):
    super().__init__()
    self._link = link

  def ask(self) -> None:
    self._link.do(self._link.member.ask)

  def stops_after(self, step: int) -> bool:
    return self._link.run(self._link.member.stops_after(step))
