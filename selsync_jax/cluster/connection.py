"""Framed messages over TCP, on event loops in separate threads.

A frame is a message, preceded by its length in four bytes. Anybody may connect
to a port, so each end must prove that it knows the token of the run. Islands
use TLS (islands/credentials.py); the processes of one JAX world sign their
messages.
"""

import asyncio
from collections.abc import Callable
import contextlib
import hmac
import secrets
import socket
import threading
import time
from typing import Any

LIMIT = 1 << 24
"""The most bytes of a frame, and of frames queued for a slow reader."""

CLOSING = 0.05
"""Seconds in which an event loop closes its connections."""

FIRST = 1 << 10
"""The most bytes of the frame with the token."""

SIGNED = 1 << 18
"""The most bytes of the first signed frame of a caller."""

LEAST = 1.0
"""The shortest timeout of processes, in seconds; signs of life may be late."""

TOKEN = 'SELSYNC_CLUSTER_TOKEN'
"""The environment variable that holds the token of a JAX world."""

# A random number follows; 2 is the protocol's version.
_HELLO = b'selsync 2 '
_DIGEST = 32  # Bytes of a signature.


class Loop:
  """An event loop in a daemon thread.

  The loop counts the time in which this process is awake: after a freeze, no
  peer appears silent for longer than before. It calls `tick(now)` every `pause`
  seconds.
  """

  def __init__(self, tick: Callable[[float], None], pause: float):
    self.loop = asyncio.new_event_loop()
    self._tick, self._pause = tick, pause
    self.now, self._last = 0.0, time.monotonic()
    self._tasks: set[asyncio.Task[None]] = set()
    self._thread = threading.Thread(target=self._run, daemon=True)

  def start(self) -> None:
    """Starts the thread."""
    self.loop.call_soon(self._wake)
    self._thread.start()

  def call(self, do: Callable[..., Any], *args: Any) -> None:
    """Calls a function in the thread, unless the thread has ended."""
    with contextlib.suppress(RuntimeError):  # The loop is closed.
      self.loop.call_soon_threadsafe(do, *args)

  def begin(self, work: Callable[..., Any], *args: Any) -> asyncio.Task[None]:
    """Runs a coroutine function; call it in the thread."""
    task = self.loop.create_task(work(*args))
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)
    return task

  def cancel(self) -> None:
    """Cancels everything that `begin` runs; call it in the thread."""
    for task in self._tasks:
      task.cancel()

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

  It calls `opened(self)` when the connection is made, `hear(self, content)` for
  each frame, and `lost(self)` when the connection is lost. A frame has at most
  `limit` bytes.

  Attributes:
    stranger: why the other end does not belong to the run; empty if it may.
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
    self.stranger = ''

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
      self._take(content)

  def _take(self, content: bytes) -> None:
    self._hear(self, content)

  def connection_lost(self, exc: Exception | None) -> None:
    """Notes that the connection has ended."""
    self._lost(self)

  def send(self, *contents: bytes) -> None:
    """Sends encoded messages; cuts off a peer that reads too little."""
    if self.transport.is_closing():
      return
    self.transport.write(b''.join(map(self._frame, contents)))
    if self.transport.get_write_buffer_size() > LIMIT:
      self.transport.abort()

  def _frame(self, content: bytes) -> bytes:
    return frame(content)


class SignedFrames(Frames):
  """One end of a connection without TLS, whose ends share a token.

  Both ends first send a random number; a key for each direction is then derived
  from both numbers and the token. A frame begins with the HMAC of the message
  and its index, so that nothing can be forged, repeated or sent back. A message
  with a wrong signature is rejected before it is parsed. Messages are not
  secret.

  Once it has `opened`, the end that calls may send; the end that `listens` may
  do so after the first message.
  """

  def __init__(self, *args: Any, token: str, listens: bool):
    super().__init__(*args, limit=SIGNED if listens else LIMIT)
    self._token, self._listens = token.encode(), listens
    self._hello = _HELLO + secrets.token_hex(16).encode() + b'\n'
    self._keys: list[bytes] = []  # This end's key, and the other end's.
    self._sent = self._received = 0

  def connection_made(self, transport: Any) -> None:
    """Sends this end's random number."""
    self.transport = transport
    transport.write(self._hello)
    if self._listens:
      self._opened(self)

  def data_received(self, data: bytes) -> None:
    """Hears the other end's random number, and then each complete frame."""
    if not self._keys:
      self._buffer += data
      data = b''
      if not self._meet():
        return
    super().data_received(data)

  def _meet(self) -> bool:
    """Returns whether the other end's random number has arrived."""
    start, end = len(_HELLO), len(self._hello)
    if not _HELLO.startswith(self._buffer[:start]):
      self._reject('it does not answer like a process of a run')
    if len(self._buffer) < end:
      return False
    other = bytes(self._buffer[:end])
    del self._buffer[:end]
    both = self._hello + other if self._listens else other + self._hello
    sides = [b'listens', b'calls'] if self._listens else [b'calls', b'listens']
    self._keys = [
      hmac.digest(self._token, side + both, 'sha256') for side in sides
    ]
    if not self._listens:
      self._opened(self)
    return True

  def _take(self, content: bytes) -> None:
    signature, content = content[:_DIGEST], content[_DIGEST:]
    expected = _signature(self._keys[1], self._received, content)
    if hmac.compare_digest(signature, expected):
      self._received += 1
      self._hear(self, content)
    else:
      self._reject(f'it has another {TOKEN}')

  def _reject(self, why: str) -> None:
    """Closes the connection; an empty message shows this end's token."""
    self.stranger = why
    self._buffer.clear()
    if self._listens and self._keys:
      self.send(b'')
    self.transport.close()

  def _frame(self, content: bytes) -> bytes:
    signature = _signature(self._keys[0], self._sent, content)
    self._sent += 1
    return frame(signature + content)


def _signature(key: bytes, index: int, content: bytes) -> bytes:
  return hmac.digest(key, index.to_bytes(8) + content, 'sha256')


def dial(address: str, timeout: float) -> socket.socket:
  """Returns a connection to a `host:port`; the host may be in brackets."""
  host, _, port = address.rpartition(':')
  return socket.create_connection((host.strip('[]'), int(port)), timeout)


def host_port(host: str, port: int) -> str:
  """Returns `host:port`; an IPv6 address gets brackets.

  >>> host_port('fd00::1', 7070), host_port('maui', 7070)
  ('[fd00::1]:7070', 'maui:7070')
  """
  return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def is_host_port(address: str) -> bool:
  """Returns whether this is `host:port`, with an IPv6 address in brackets.

  >>> is_host_port('[fd00::1]:7070'), is_host_port('fd00::1:7070')
  (True, False)
  """
  host, _, port = address.rpartition(':')
  is_host = ':' not in host or host[0] + host[-1] == '[]'
  is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) < 2**16
  return bool(host) and is_host and is_port


def listen_everywhere(port: int, backlog: int | None = None) -> socket.socket:
  """Returns a socket that listens on all interfaces, in IPv6 and IPv4.

  Args:
    port: port number; 0 is a free one.
    backlog: see `socket.create_server`.

  Raises:
    OSError: if the port cannot be opened.
  """
  if socket.has_dualstack_ipv6():
    return socket.create_server(
      ('', port),
      family=socket.AF_INET6,
      dualstack_ipv6=True,
      backlog=backlog,
    )
  return socket.create_server(('', port), backlog=backlog)


def frame(content: bytes) -> bytes:
  """Returns an encoded message as a frame."""
  return len(content).to_bytes(4) + content
