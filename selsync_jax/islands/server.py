"""The coordinator's server. It tracks the islands, and holds no weights.

The relay (relay.py) uses the same port.
"""

import atexit
from collections.abc import Callable
from concurrent import futures
import contextlib
import functools
import hmac
import json
import pathlib
import secrets
import socket
import time
from typing import Any

from selsync_jax.cluster.connection import (
  FIRST,
  Frames,
  host_port,
  listen_everywhere,
)
from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.coordinator import Coordinator
from selsync_jax.cluster.server import GREETING, Server
from selsync_jax.islands.credentials import (
  create_credentials,
  Credentials,
  fingerprint,
  host_name,
  Invitation,
  server_context,
)
from selsync_jax.islands.journal import Journal
from selsync_jax.islands.relay import Relay

ANSWER = 5.0
"""Seconds until the status must be available."""

ENDS = ('left', 'finished', 'ended')
"""The kinds of events after which an island is away."""


class CoordinatorServer(Server):
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
    grace: see `Coordinator`.

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
    self._tls = server_context(certificate, key)
    listening = listen_everywhere(port, backlog=2048)
    self.port = listening.getsockname()[1]
    self.invitation = Invitation(
      host_port(host, self.port), token, fingerprint(certificate)
    )
    self._journal = Journal(say, log)
    self._strangers = 0
    machine = Coordinator(
      islands,
      minimum or islands,
      timeout,
      grace,
      secrets.token_hex(8),
      self._journal.add,
    )
    super().__init__(machine, functools.partial(Frames, limit=FIRST))
    self._relayed: set[str] = set()  # Names of islands.
    self._relay = Relay(listening, islands, self._summon, self._take)
    atexit.register(self.shutdown)

  def status(self) -> dict[str, Any]:
    """Returns the status of the islands, as values of JSON."""
    found = futures.Future[dict[str, Any]]()
    self._loop.call(lambda: found.set_result(self._status()))
    return found.result(ANSWER)

  def _status(self) -> dict[str, Any]:
    machine, totals = self._machine, self._journal.totals
    each = machine.status(self._loop.now)
    rows: list[dict[str, Any]] = [
      {'name': name, **(each[name] or self._away(name))} for name in each
    ]
    steps = [row['step'] for row in rows if row['state'] == 'trains']
    present = len(totals.last.present)
    return {
      'expected': machine.islands,
      'minimum': machine.minimum,
      'present': present,
      'generation': totals.last.generation,
      'participation': present / machine.islands,
      'mean_participation': totals.participation(time.time()),
      'step_spread': max(steps) - min(steps) if steps else 0,
      'admitted': totals.counts.get('admitted', 0),
      'ended': totals.counts.get('ended', 0),
      'left': totals.counts.get('left', 0),
      'islands': rows,
    }

  def _away(self, name: str) -> dict[str, str]:
    """Returns the row of an island that is away: how it ended, if known."""
    last = self._journal.totals.last_of.get(name)
    why = last.words if last and last.kind in ENDS else 'is away'
    return {'state': 'away', 'why': why}

  def shutdown(self) -> None:
    """Ends the connections; the islands then look for another coordinator."""
    atexit.unregister(self.shutdown)
    self._relay.shutdown()
    self._loop.call(self._loop.cancel)
    super().shutdown()
    self._journal.close()

  def _take(self, plain: socket.socket) -> None:
    """Serves a caller that speaks to the coordinator itself, over TLS."""
    self._loop.call(self._loop.begin, self._secure, plain)

  def _summon(self, name: str, ticket: str) -> futures.Future[bool]:
    """Gives a ticket to the island with a host name; see `Relay`."""
    found = futures.Future[bool]()

    def call():
      if found.set_running_or_notify_cancel():
        found.set_result(self._call(name, ticket))

    self._loop.call(call)
    return found

  def __enter__(self) -> 'CoordinatorServer':
    return self

  def __exit__(self, *exc: Any) -> None:
    self.shutdown()

  # The rest runs in the loop's thread.

  async def _secure(self, plain: socket.socket) -> None:
    with contextlib.suppress(OSError):  # A stranger, or in a hurry.
      await self._loop.loop.connect_accepted_socket(
        self._caller, plain, ssl=self._tls, ssl_handshake_timeout=GREETING
      )

  def _call(self, name: str, ticket: str) -> bool:
    """Gives a ticket to an island; returns whether there is such an island."""
    token = self._credentials.token
    for seat in self._machine.present:
      if host_name(token, seat.name) == name:
        self._callers[seat.number].send(
          messages.encode(messages.Called(ticket))
        )
        if seat.name not in self._relayed:
          self._relayed.add(seat.name)
          line = f'messages of {seat.name} pass through this coordinator'
          self._journal.remark(line)
        return True
    return False

  def _greet(self, caller: Frames, content: bytes) -> None:
    """Admits a caller that has the token; rejects all others."""
    message: Any = None
    with contextlib.suppress(ValueError):
      message = messages.from_island(content)
    given = message.token if isinstance(message, messages.Hello) else ''
    if hmac.compare_digest(given.encode(), self._credentials.token.encode()):
      return self._admit(caller)
    self._strangers += 1
    if self._strangers == 1:
      line = 'a caller without the token of this run was turned away'
      self._journal.remark(line)
    ended = messages.Ended('wrong token', 'refused')
    caller.send(messages.encode(ended))
    caller.transport.close()

  def _handle(self, caller: Frames, message: messages.OF_ISLANDS) -> None:
    if not isinstance(message, messages.Ask):
      return super()._handle(caller, message)
    key = self._credentials.key  # Only this gives the private key away.
    if message.what == 'status':
      key = json.dumps(self._status()).encode()
    caller.send(messages.encode(messages.Told(key)))
