"""A coordinator's connections to its members."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
import itertools
import socket
import threading
from typing import Any

from selsync_jax.cluster.connection import Frames, LIMIT, Loop
from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.coordinator import Coordinator

TICK = 0.1
"""Seconds from one check for silent members to the next."""

GREETING = 10.0
"""Seconds until a caller must have shown that it knows the token."""

STRANGERS = 64
"""The most callers, besides one for each member, that have not shown it."""


class Server:
  """Carries the messages of a `Coordinator`, in a thread.

  `frames` makes this end of a connection from the callables that `Frames`
  takes. It hangs up `parting` seconds after a member has ended.
  """

  def __init__(
    self,
    machine: Coordinator,
    frames: Callable[..., Frames],
    parting: float = 0.5,
  ):
    self._machine, self._new, self._parting = machine, frames, parting
    self._numbers = itertools.count()
    self._callers: dict[int, Frames] = {}  # Those with the token.
    self._known: dict[Frames, int] = {}
    self._unknown: dict[Frames, int] = {}  # The oldest is first.
    self._is_empty = threading.Event()
    self._server: asyncio.Server | None = None
    self._loop = Loop(self._tick, TICK)
    self._loop.start()

  def listen(self, listening: socket.socket) -> None:
    """Serves callers of a listening socket."""
    self._server = self._wait_for(
      self._loop.loop.create_server(self._caller, sock=listening)
    )

  def accept(self, plain: socket.socket) -> None:
    """Serves a caller that is connected already."""
    self._wait_for(self._loop.loop.connect_accepted_socket(self._caller, plain))

  def drain(self, seconds: float) -> None:
    """Waits until all callers with the token have hung up."""
    self._is_empty.wait(seconds)

  def shutdown(self) -> None:
    """Ends the connections, and frees the port."""
    self._loop.call(self._close)
    self._loop.stop(GREETING)

  def _wait_for(self, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, self._loop.loop).result()

  # The rest runs in the loop's thread.

  def _close(self) -> None:
    if self._server:
      self._server.close()
    callers = [*self._known, *self._unknown]
    self._known.clear()
    for caller in callers:
      caller.transport.abort()

  def _tick(self, now: float) -> None:
    self._machine.tick(now)
    self._flush()

  def _caller(self) -> Frames:
    return self._new(self._opened, self._hear, self._lost)

  def _opened(self, caller: Frames) -> None:
    self._unknown[caller] = next(self._numbers)
    # Members introduce themselves at once, and call again if they are cut off,
    # so the oldest caller is likely to be a stranger.
    if len(self._unknown) > self._machine.islands + STRANGERS:
      self._cut_off(next(iter(self._unknown)))
    self._loop.loop.call_later(GREETING, self._cut_off, caller)

  def _cut_off(self, caller: Frames) -> None:
    """Disconnects a caller that has not shown that it knows the token."""
    if caller in self._unknown:
      del self._unknown[caller]
      caller.transport.abort()

  def _admit(self, caller: Frames) -> None:
    """Hears a caller that knows the token."""
    self._known[caller] = number = self._unknown.pop(caller)
    self._callers[number], caller.limit = caller, LIMIT

  def _greet(self, caller: Frames, content: bytes) -> None:
    """Hears the first message of a caller; its signature proves the token."""
    self._admit(caller)
    self._hear(caller, content)

  def _hear(self, caller: Frames, content: bytes) -> None:
    if caller not in self._known:
      return self._greet(caller, content)
    try:
      message = messages.from_island(content)
    except ValueError as error:
      why = f'it says what no island of this version says: {error}'
      message = messages.Failed(why)
      self._loop.call(caller.transport.close)
    self._handle(caller, message)

  def _handle(self, caller: Frames, message: messages.OF_ISLANDS) -> None:
    self._machine.hear(self._known[caller], message, self._loop.now)
    self._flush()

  def _lost(self, caller: Frames) -> None:
    self._unknown.pop(caller, None)
    number = self._known.pop(caller, None)
    if number is not None:
      del self._callers[number]
      self._machine.lost(number, self._loop.now)
      self._flush()
      if not self._known:
        self._is_empty.set()

  def _flush(self) -> None:
    while self._machine.outgoing:
      self._send(*self._machine.outgoing.popleft())

  def _send(self, numbers: Sequence[int], message: messages.Message) -> None:
    """Sends the state machine's messages, encoded once for all."""
    content = messages.encode(message)
    # Process 0 is the first, and may end the server with itself: it hears last.
    for number in reversed(numbers):
      if caller := self._callers.get(number):
        caller.send(content)
        if isinstance(message, messages.Ended):
          # A member that writes to a closed connection loses messages that
          # it has not read yet.
          self._loop.loop.call_later(self._parting, caller.transport.close)
