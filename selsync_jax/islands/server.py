"""The coordinator's server. It tracks the islands, and holds no weights."""

import asyncio
import atexit
from collections.abc import Callable, Sequence
from concurrent import futures
import contextlib
import hmac
import itertools
import json
import pathlib
import secrets
import socket
from typing import Any

from selsync_jax.cluster.connection import (
  FIRST,
  Frames,
  GREETING,
  LIMIT,
  Loop,
)
from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.coordinator import Coordinator
from selsync_jax.islands.credentials import (
  create_credentials,
  Credentials,
  fingerprint,
  Invitation,
  server_context,
)
from selsync_jax.islands.journal import Journal
from selsync_jax.islands.status import status

TICK = 0.1
"""Seconds from one check for silent islands to the next."""

ANSWER = 5.0
"""Seconds until the status must be available."""


class CoordinatorServer:
  """The coordinator's server.

  Args:
    islands: N, the number of islands.
    host: name or address by which islands reach this host.
    port: port to listen at; 0 is a free one.
    timeout: seconds for which an island waits for the others; then the islands
      that have joined begin, if they are enough.
    say: a function that takes a line about each island that joins or leaves.
    minimum: the least number of islands that train; `None` is all of them.
    credentials: credentials of the run; `None` makes new ones.
    log: see `Journal`.
    grace: see `protocol.run.Run`.

  Attributes:
    port: port number.
    invitation: invitation for islands that join.

  Raises:
    OSError: if the port cannot be opened.
  """

  def __init__(
    self,
    islands: int,
    host: str = '127.0.0.1',
    port: int = 0,
    timeout: float = 600.0,
    say: Callable[[str], None] = lambda line: None,
    minimum: int | None = None,
    credentials: Credentials | None = None,
    log: pathlib.Path | None = None,
    grace: float | None = None,
  ):
    self._credentials = credentials or create_credentials()
    token, certificate, key = self._credentials
    context = server_context(certificate, key)
    listening = socket.create_server(('0.0.0.0', port), backlog=2048)
    self.port = listening.getsockname()[1]
    self.invitation = Invitation(
      f'{host}:{self.port}', token, fingerprint(certificate)
    )
    self._journal = Journal(say, log)
    self._machine = Coordinator(
      islands,
      minimum or islands,
      timeout,
      grace,
      secrets.token_hex(8),
      self._journal.add,
    )
    self._numbers, self._strangers = itertools.count(), 0
    self._callers: dict[int, Frames] = {}  # Those with the token.
    self._known: dict[Frames, int] = {}
    self._loop = Loop(self._tick, TICK)
    self._loop.start()
    serving = self._loop.loop.create_server(
      lambda: Frames(self._opened, self._hear, self._lost, FIRST),
      sock=listening,
      ssl=context,
      ssl_handshake_timeout=GREETING,
    )
    self._server = asyncio.run_coroutine_threadsafe(
      serving, self._loop.loop
    ).result(GREETING)
    atexit.register(self.shutdown)

  def status(self) -> dict[str, Any]:
    """Returns the status of the islands; see `status.status`."""
    found = futures.Future[dict[str, Any]]()
    self._loop.call(lambda: found.set_result(self._status()))
    return found.result(ANSWER)

  def _status(self) -> dict[str, Any]:
    machine, totals = self._machine, self._journal.totals
    each = machine.status(self._loop.now)
    return status(machine.islands, machine.minimum, each, totals)

  def shutdown(self) -> None:
    """Ends the connections; the islands then look for another coordinator."""
    atexit.unregister(self.shutdown)
    self._loop.call(self._close)
    self._loop.stop(GREETING)
    self._journal.close()

  def __enter__(self) -> 'CoordinatorServer':
    return self

  def __exit__(self, *exc: Any) -> None:
    self.shutdown()

  # The rest runs in the loop's thread.

  def _close(self) -> None:
    self._server.close()
    for caller in [*self._known]:
      self._known.pop(caller)
      caller.transport.abort()

  def _tick(self, now: float) -> None:
    self._machine.tick(now)
    self._flush()

  def _opened(self, caller: Frames) -> None:
    self._loop.loop.call_later(GREETING, self._expect, caller)

  def _expect(self, caller: Frames) -> None:
    """Disconnects a caller that does not send its token in time."""
    if caller not in self._known:
      caller.transport.abort()

  def _greet(self, caller: Frames, content: bytes) -> None:
    """Admits a caller that has the token; rejects all others."""
    message: Any = None
    with contextlib.suppress(ValueError):
      message = messages.from_island(content)
    given = message.token if isinstance(message, messages.Hello) else ''
    if not hmac.compare_digest(
      given.encode(), self._credentials.token.encode()
    ):
      self._strangers += 1
      if self._strangers == 1:
        line = 'a caller without the token of this run was turned away'
        self._journal.remark(line)
      caller.send(messages.encode(messages.Ended('wrong token', 'refused')))
      caller.transport.close()
      return
    self._known[caller] = number = next(self._numbers)
    self._callers[number], caller.limit = caller, LIMIT

  def _hear(self, caller: Frames, content: bytes) -> None:
    number = self._known.get(caller)
    if number is None:
      return self._greet(caller, content)
    try:
      message = messages.from_island(content)
    except ValueError as error:
      why = f'it says what no island of this version says: {error}'
      message = messages.Failed(why)
      self._loop.call(caller.transport.close)
    if isinstance(message, messages.Ask):
      # Only this gives the private key away.
      key = self._credentials.key
      if message.what == 'status':
        key = json.dumps(self._status()).encode()
      caller.send(messages.encode(messages.Told(key)))
    else:
      self._machine.hear(number, message, self._loop.now)
      self._flush()

  def _lost(self, caller: Frames) -> None:
    number = self._known.pop(caller, None)
    if number is not None:
      del self._callers[number]
      self._machine.lost(number, self._loop.now)
      self._flush()

  def _flush(self) -> None:
    while self._machine.outgoing:
      self._send(*self._machine.outgoing.popleft())

  def _send(self, numbers: Sequence[int], message: messages.Message) -> None:
    """Sends the state machine's messages, encoded once for all."""
    content = messages.encode(message)
    for number in numbers:
      if caller := self._callers.get(number):
        caller.send(content)
        if isinstance(message, messages.Ended):
          caller.transport.close()
