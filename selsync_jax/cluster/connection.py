"""Framed messages over TCP, on event loops in separate threads.

A frame is a message, preceded by its length in four bytes.
"""

import asyncio
from collections.abc import Callable
import contextlib
import socket
import threading
import time
from typing import Any

from selsync_jax.cluster.protocol import messages

LIMIT = 1 << 24
"""The most bytes of a frame, and of frames queued for a slow reader."""

GREETING = 10.0
"""Seconds until a caller must have shown its token."""

CLOSING = 0.05
"""Seconds in which an event loop closes its connections."""

FIRST = 1 << 10
"""The most bytes of the frame with the token."""


class Loop:
  """An event loop in a daemon thread.

  The loop counts the time in which this process is awake: after a freeze, no
  peer appears silent for longer than before.

  Args:
    tick: called repeatedly, with the time.
    pause: seconds from one call to the next.
  """

  def __init__(self, tick: Callable[[float], None], pause: float):
    self.loop = asyncio.new_event_loop()
    self._tick, self._pause = tick, pause
    self.now, self._last = 0.0, time.monotonic()
    self._thread = threading.Thread(target=self._run, daemon=True)

  def start(self) -> None:
    """Starts the thread."""
    self.loop.call_soon(self._wake)
    self._thread.start()

  def call(self, do: Callable[..., Any], *args: Any) -> None:
    """Calls a function in the thread, unless the thread has ended."""
    with contextlib.suppress(RuntimeError):  # The loop is closed.
      self.loop.call_soon_threadsafe(do, *args)

  def stop(self, seconds: float) -> None:
    """Ends the thread, after connections that were closed have closed."""
    self.call(self.loop.call_later, CLOSING, self.loop.stop)
    if threading.current_thread() is not self._thread:
      self._thread.join(seconds)

  def _run(self) -> None:
    asyncio.set_event_loop(self.loop)
    try:
      self.loop.run_forever()
    finally:
      self.loop.close()

  def _wake(self) -> None:
    last, self._last = self._last, time.monotonic()
    self.now += min(self._last - last, 2 * self._pause)
    self.loop.call_later(self._pause, self._wake)
    self._tick(self.now)


class Frames(asyncio.Protocol):
  """One end of a connection.

  Args:
    opened: called with this when the connection is made.
    hear: called with this and each frame.
    lost: called with this when the connection is lost.
    limit: the most bytes of a frame.
  """

  transport: asyncio.Transport

  def __init__(
    self,
    opened: Callable[['Frames'], None],
    hear: Callable[['Frames', bytes], None],
    lost: Callable[['Frames'], None],
    limit: int = LIMIT,
  ):
    self._opened, self._hear, self._lost = opened, hear, lost
    self._buffer, self.limit = bytearray(), limit

  def connection_made(self, transport: Any) -> None:
    """Notes that the connection is made, TLS included."""
    self.transport = transport
    self._opened(self)

  def data_received(self, data: bytes) -> None:
    """Hears each frame that is complete."""
    self._buffer += data
    while len(self._buffer) >= 4:
      size = int.from_bytes(self._buffer[:4])
      if size > self.limit:
        self.transport.abort()
        return
      if len(self._buffer) < 4 + size:
        return
      content = bytes(self._buffer[4 : 4 + size])
      del self._buffer[: 4 + size]
      self._hear(self, content)

  def connection_lost(self, exc: Exception | None) -> None:
    """Notes that the connection has ended."""
    self._lost(self)

  def send(self, frame: bytes) -> None:
    """Sends a frame; cuts off a peer that reads too little."""
    if self.transport.is_closing():
      return
    self.transport.write(frame)
    if self.transport.get_write_buffer_size() > LIMIT:
      self.transport.abort()


def dial(address: str, timeout: float) -> socket.socket:
  """Returns a connection to a `host:port`; the host may be in brackets."""
  host, _, port = address.rpartition(':')
  return socket.create_connection((host.strip('[]'), int(port)), timeout)


def frame(message: messages.Message) -> bytes:
  """Returns a message as a frame."""
  content = messages.encode(message)
  return len(content).to_bytes(4) + content
