"""Framed messages over TLS, on event loops in separate threads.

A frame is a message, preceded by its length in four bytes. The fingerprint of
its certificate identifies the coordinator; the token identifies an island.
"""

import asyncio
from collections.abc import Callable
import contextlib
import hashlib
import os
import socket
import ssl
import threading
import time
from typing import Any

from selsync_jax.config import RunError
from selsync_jax.islands.credentials import Invitation
from selsync_jax.islands.protocol import messages

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


def frame(message: messages.Message) -> bytes:
  """Returns a message as a frame."""
  content = messages.encode(message)
  return len(content).to_bytes(4) + content


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
  """Returns the TLS context of a server with this certificate and key.

  Python loads a certificate and a key from files only. They are pipes here, so
  nothing is written to a disk.

  Raises:
    OSError: if the arguments are not a valid certificate and its key.
  """
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  ends = []
  for content in (certificate, key):
    source, sink = os.pipe()
    os.write(sink, content)
    os.close(sink)
    ends.append(source)
  try:
    context.load_cert_chain(*(f'/dev/fd/{source}' for source in ends))
  finally:
    for source in ends:
      os.close(source)
  return context


def client_context() -> ssl.SSLContext:
  """Returns the TLS context of a client that compares fingerprints itself."""
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
  return context


def check_certificate(invitation: Invitation, found: bytes | None) -> None:
  """Raises `RunError` unless it is the coordinator's certificate, in DER."""
  if hashlib.sha256(found or b'').hexdigest() != invitation.fingerprint:
    raise RunError(
      f'the coordinator {invitation.address} has another certificate '
      'than the invitation says'
    )


def dial(invitation: Invitation, timeout: float) -> socket.socket:
  """Returns a connection to the coordinator, still without TLS."""
  host, _, port = invitation.address.rpartition(':')
  return socket.create_connection((host, int(port)), timeout)


def ask(
  invitation: Invitation, what: str, timeout: float
) -> tuple[bytes, str, bytes]:
  """Asks the coordinator for the key or the status, perhaps before it serves.

  Args:
    invitation: the coordinator's invitation.
    what: see `messages.Ask`.
    timeout: seconds until it must answer.

  Returns:
    The answer, the address of this host there, and the certificate in PEM.

  Raises:
    RunError: if the coordinator is unreachable or has another certificate.
  """
  deadline, where = time.monotonic() + timeout, invitation.address
  fate = 'cannot be reached'
  while True:
    try:
      left = max(0.1, deadline - time.monotonic())
      with dial(invitation, left) as plain:
        fate = f'has not answered for {timeout:g} s'
        return _ask(invitation, what, plain)
    except OSError as error:
      if time.monotonic() >= deadline:
        raise RunError(f'the coordinator {where} {fate}') from error
      time.sleep(0.2)


def _ask(
  invitation: Invitation, what: Any, plain: socket.socket
) -> tuple[bytes, str, bytes]:
  with client_context().wrap_socket(plain) as link:
    found = link.getpeercert(binary_form=True) or b''
    check_certificate(invitation, found)
    link.sendall(
      frame(messages.Hello(invitation.token)) + frame(messages.Ask(what))
    )
    with link.makefile('rb') as file:
      size = int.from_bytes(file.read(4))
      content = file.read(size)
    if not size or len(content) < size:
      raise ConnectionError('it closed the connection')
    answer = messages.from_coordinator(content)
    if not isinstance(answer, messages.Told):
      raise RunError(
        f'the coordinator {invitation.address} rejects the token of the '
        'invitation'
      )
    certificate = ssl.DER_cert_to_PEM_cert(found).encode()
    return answer.content, link.getsockname()[0], certificate
