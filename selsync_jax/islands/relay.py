"""Connections to islands that only dial out, through the coordinator's port.

Every island has a host name of its own, which TLS sends in clear. A caller of
the coordinator's port that asks for such a name is kept waiting, while the
coordinator gives the island a ticket. The island dials the same port with the
ticket, and the coordinator copies bytes between the two. TLS ends at the
island, so the coordinator copies ciphertext and needs no key.
"""

import asyncio
from collections.abc import Callable
from concurrent import futures
import contextlib
import functools
import secrets
import socket
import ssl
import threading
from typing import Any

from selsync_jax.cluster.connection import dial, Loop
from selsync_jax.cluster.server import GREETING, STRANGERS
from selsync_jax.islands.credentials import SUFFIX

HOST = 'relay'
"""The host in the address of an island that calls and is called here only."""

FIRST = 1 << 14
"""The most bytes before it is known what a caller wants: one record of TLS."""

WAITING = 1 << 10
"""The most callers that wait for islands."""

CHANNELS = 2
"""The connections from an island to another: for its steps, and behind them."""

BLOCK = 1 << 16
"""The most bytes copied at a time."""

SILENCE = 30
"""Seconds of silence after which the kernel probes a connection."""

_PAUSE = 0.02  # Seconds until the rest of a caller's first bytes may be there.
_RESTING = 1.0  # Seconds without new callers after one too many.
_IDLE = 60.0
_TICKET = b'selsync ticket '
_SIZE = len(_TICKET) + 32


def server_name(hello: bytes) -> str | None:
  """Returns the host name that the first bytes of a TLS connection ask for.

  It is `None` if they ask for none, or are not TLS.

  Raises:
    ssl.SSLWantReadError: if they are incomplete.
  """
  incoming = ssl.MemoryBIO()
  incoming.write(hello)
  tls: Any = _reader().wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
  tls.asked = None
  try:
    tls.do_handshake()
  except ssl.SSLWantReadError:
    raise
  except ssl.SSLError:
    pass
  return tls.asked


@functools.cache
def _reader() -> ssl.SSLContext:
  """Returns the TLS context of a server that reads a name, and then fails."""
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

  def note(tls, name, _):
    tls.asked = name
    return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

  context.sni_callback = note
  return context


class Copier:
  """Copies bytes between sockets, in a thread."""

  def __init__(self):
    self._loop = Loop(lambda now: None, _IDLE)
    self._loop.start()

  def join(self, one: socket.socket, other: socket.socket) -> None:
    """Copies both ways until both sockets are closed; then closes them."""
    self._loop.call(self._loop.begin, joined, one, other)

  def shutdown(self) -> None:
    """Closes all sockets."""
    self._loop.call(self._loop.cancel)
    self._loop.stop(GREETING)


async def joined(one: socket.socket, other: socket.socket) -> None:
  """Copies bytes both ways until both sockets are closed; then closes them."""
  with one, other:
    try:
      for each in one, other:
        each.setblocking(False)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Translators of addresses forget connections that are silent.
        each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, 'TCP_KEEPIDLE'):
          each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE)
          each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE)
      async with asyncio.TaskGroup() as group:
        group.create_task(_copy(one, other))
        group.create_task(_copy(other, one))
    except* OSError:
      pass


async def _copy(source: socket.socket, sink: socket.socket) -> None:
  loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(BLOCK))
  while size := await loop.sock_recv_into(source, buffer):
    await loop.sock_sendall(sink, buffer[:size])
  sink.shutdown(socket.SHUT_WR)


class Relay(Copier):
  """Accepts the callers of a port, and connects some of them to islands.

  Args:
    listening: the listening socket.
    islands: the number of islands.
    summon: takes an island's host name and a ticket, and gives the ticket to
      the island; the future says whether there is such an island.
    others: takes a caller that asks for no island.
  """

  def __init__(
    self,
    listening: socket.socket,
    islands: int,
    summon: Callable[[str, str], futures.Future[bool]],
    others: Callable[[socket.socket], None],
  ):
    super().__init__()
    self._listening, self._most = listening, islands + STRANGERS
    self._joined, self._most_joined = 0, 2 * CHANNELS * islands**2
    self._summon, self._others = summon, others
    # Callers that have not said what they want; the oldest is first.
    self._new: dict[socket.socket, asyncio.Task[None]] = {}
    self._waiting: dict[str, asyncio.Future[socket.socket]] = {}  # By ticket.
    listening.setblocking(False)
    self._loop.call(self._loop.begin, self._accept)

  def shutdown(self) -> None:
    """Closes all sockets, the listening one, too."""
    super().shutdown()
    self._listening.close()

  async def _accept(self) -> None:
    loop = asyncio.get_running_loop()
    while True:
      try:
        caller, _ = await loop.sock_accept(self._listening)
      except OSError:  # Too many files are open.
        await asyncio.sleep(_RESTING)
        continue
      self._new[caller] = self._loop.begin(self._greet, caller)
      await asyncio.sleep(0)  # It starts; otherwise, it would not close.
      if len(self._new) > self._most:  # The oldest is likely a stranger.
        self._new.pop(next(iter(self._new))).cancel()

  async def _greet(self, caller: socket.socket) -> None:
    """Finds out what a caller wants, and does it."""
    with contextlib.ExitStack() as stack:
      stack.enter_context(caller)
      stack.callback(self._new.pop, caller, None)
      try:
        async with asyncio.timeout(GREETING):
          wanted, is_ticket = await _wanted(caller)
          self._new.pop(caller, None)
          if is_ticket:
            waiting = self._waiting.get(wanted)
            if waiting and not waiting.done():
              waiting.set_result(caller)
              stack.pop_all()
            return
          if not wanted.endswith(SUFFIX):
            stack.pop_all()
            return self._others(caller)
          island = await self._called(wanted)
      except OSError:  # Or a timeout.
        return
      if island:
        stack.pop_all()
        self._joined += 1
        try:
          await joined(caller, island)
        finally:
          self._joined -= 1

  async def _called(self, name: str) -> socket.socket | None:
    """Returns a connection that an island has made with a ticket."""
    if len(self._waiting) >= WAITING or self._joined >= self._most_joined:
      return None
    ticket = secrets.token_hex(16)
    self._waiting[ticket] = waiting = asyncio.Future()
    try:
      if await asyncio.wrap_future(self._summon(name, ticket)):
        return await waiting
    finally:
      del self._waiting[ticket]
    return None


async def _wanted(caller: socket.socket) -> tuple[str, bool]:
  """Returns the name or the ticket that a caller presents.

  A ticket is read; the first bytes of TLS stay in the socket.
  """
  loop = asyncio.get_running_loop()
  is_there = loop.create_future()
  loop.add_reader(caller, lambda: is_there.done() or is_there.set_result(None))
  try:
    await is_there
  finally:
    loop.remove_reader(caller)
  while True:
    first = caller.recv(FIRST, socket.MSG_PEEK)
    if first[: len(_TICKET)] != _TICKET[: len(first)]:
      with contextlib.suppress(ssl.SSLWantReadError):
        return server_name(first) or '', False
    elif len(first) >= _SIZE:
      return caller.recv(_SIZE)[len(_TICKET) :].decode('latin-1'), True
    if not first or len(first) == FIRST:
      return '', False
    await asyncio.sleep(_PAUSE)


class DialBack:
  """An island's end: it dials the coordinator with each ticket that it gets.

  Args:
    relay: `host:port` of the coordinator.
    own: `host:port` of this island's server.
  """

  def __init__(self, relay: str, own: str):
    self._relay, self._own = relay, own
    self._copier: Copier | None = None  # Few islands need one.

  def called(self, ticket: str) -> None:
    """Connects the caller that waits for a ticket with this island's server."""
    copier = self._copier = self._copier or Copier()
    threading.Thread(
      target=self._dial, args=(ticket, copier), daemon=True
    ).start()

  def _dial(self, ticket: str, copier: Copier) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
      caller = stack.enter_context(dial(self._relay, GREETING))
      own = stack.enter_context(dial(self._own, GREETING))
      caller.sendall(_TICKET + ticket.encode())
      stack.pop_all()
      copier.join(caller, own)

  def shutdown(self) -> None:
    """Closes all connections."""
    if self._copier:
      self._copier.shutdown()
