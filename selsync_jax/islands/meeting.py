"""Where islands meet: the coordinator's server, and how to join.

Whoever has the coordinator's invitation, one string, can join. An island says
its name, where it can be reached, and what it is about to run. When all are
there, each learns its index, where the others are, and the credentials of the
run. The coordinator holds no weights.
"""

import asyncio
import atexit
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import contextlib
import hashlib
import hmac
import itertools
import json
import math
import pathlib
import secrets
import socket
from typing import Any

import msgspec

from selsync_jax.config import ConfigError
from selsync_jax.islands.connection import (
  ask,
  FIRST,
  frame,
  Frames,
  GREETING,
  LIMIT,
  Loop,
  server_context,
)
from selsync_jax.islands.flight import create_credentials, Credentials
from selsync_jax.islands.invitation import fingerprint, Invitation
from selsync_jax.islands.journal import Journal
from selsync_jax.islands.link import Link
from selsync_jax.islands.messages import FlightPeers
from selsync_jax.islands.meter import Meter
from selsync_jax.islands.outbox import Outbox, PATIENCE, PIECE
from selsync_jax.islands.peers import Peers
from selsync_jax.islands.protocol import messages
from selsync_jax.islands.protocol.coordinator import Coordinator
from selsync_jax.islands.relay import Relay
from selsync_jax.islands.status import status

TICK = 0.1
"""Seconds from one look for silent islands to the next."""

ANSWER = 5.0
"""Seconds until a coordinator that serves must have answered."""


class MeetingPoint:
  """The coordinator's server.

  Args:
    islands: N, the number of islands.
    host: the name or address by which islands reach this host.
    port: the port to listen at; 0 is a free one.
    timeout: seconds that an island waits for the others; then those that are
      there begin, if they are enough.
    say: a function that takes a line about each island that joins or leaves.
    minimum: the least number of islands that train; `None` is all of them.
    credentials: those of the run; `None` makes new ones.
    log: see `Journal`.
    grace: see `protocol.run.Run`.

  Attributes:
    port: where it listens.
    invitation: what islands need to join.

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
    """Returns what the islands are doing; see `status.status`."""
    found = futures.Future[dict[str, Any]]()
    self._loop.call(lambda: found.set_result(self._status()))
    return found.result(ANSWER)

  def _status(self) -> dict[str, Any]:
    machine, totals = self._machine, self._journal.totals
    each = machine.status(self._loop.now)
    return status(machine.islands, machine.minimum, each, totals)

  def shutdown(self) -> None:
    """Ends the connections; the islands look for another coordinator."""
    atexit.unregister(self.shutdown)
    self._loop.call(self._close)
    self._loop.stop(GREETING)
    self._journal.close()

  def __enter__(self) -> 'MeetingPoint':
    return self

  def __exit__(self, *exc: Any) -> None:
    self.shutdown()

  # In the loop's thread.

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
    """Cuts a caller off that has not shown its token."""
    if caller not in self._known:
      caller.transport.abort()

  def _greet(self, caller: Frames, content: bytes) -> None:
    """Lets a caller in that has the token; others are turned away."""
    message: Any = None
    with contextlib.suppress(msgspec.MsgspecError):
      message = messages.from_island(content)
    given = message.token if isinstance(message, messages.Hello) else ''
    if not hmac.compare_digest(
      given.encode(), self._credentials.token.encode()
    ):
      self._strangers += 1
      if self._strangers == 1:
        line = 'a caller without the token of this run was turned away'
        self._journal.remark(line)
      caller.send(frame(messages.Ended('wrong token', 'refused')))
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
    except msgspec.MsgspecError as error:
      why = f'it says what no island of this version says: {error}'
      message = messages.Failed(why)
      self._loop.call(caller.transport.close)
    if isinstance(message, messages.Ask):
      # This alone gives the private key away.
      key = self._credentials.key
      if message.what == 'status':
        key = json.dumps(self._status()).encode()
      caller.send(frame(messages.Told(key)))
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
    """Sends what the machine says, encoded once for all."""
    content = frame(message)
    for number in numbers:
      if caller := self._callers.get(number):
        caller.send(content)
        if isinstance(message, messages.Ended):
          caller.transport.close()


def join(
  invitation: Invitation,
  name: str,
  run: Any,
  timeout: float = 60.0,
  limit: float | None = None,
  welcomes: bool = False,
  slot: int | None = None,
  relays: Sequence[str] = (),
  say: Callable[[str], None] = lambda line: None,
) -> Peers:
  """Joins a run, and returns its islands when all have joined.

  If they train already, it `prepares`; see `Peers`.

  Args:
    invitation: the coordinator's invitation.
    name: this island's name, unique in the run.
    run: what this island is about to run, equal on all; if it is a mapping, a
      refusal names the entries that differ.
    timeout: seconds until the coordinator must answer, and for which this
      island may be silent.
    limit: the most bytes per second that this island sends of messages; `None`
      sets none.
    welcomes: whether this island admits islands while it runs.
    slot: slot that it had before, if it knows one.
    relays: the address of each `relay` of its other processes.
    say: takes a line when this island waits for others for long.

  Raises:
    ConfigError: if an argument is out of its range.
    RunError: if the coordinator cannot be reached or refuses the island.
    FinishedError: if there is nothing left to do; also when it enters later.
  """
  check(timeout, limit)
  meter = Meter()
  credentials, host = _credentials(invitation, timeout)
  outbox = Outbox(f'{host}:0', credentials, meter, limit)
  entries = run if isinstance(run, Mapping) else {'what it runs': run}
  introduction = messages.Join(
    name,
    f'{host}:{outbox.port}',
    {entry: _digest(value) for entry, value in entries.items()},
    timeout,
    welcomes,
    slot,
    [*relays],
  )
  link = Link(invitation, introduction, meter, say)
  try:
    link.run(link.member.enter())
  except BaseException as error:
    outbox.shutdown()
    link.close(link.member.fail, f'{error}')
    raise
  return FlightPeers(name, link, outbox, credentials, meter, timeout)


def check(timeout: float, limit: float | None) -> None:
  """Raises `ConfigError` for a timeout or limit out of range."""
  if not (math.isfinite(timeout) and timeout > 0):
    raise ConfigError(f'timeout={timeout:g}: must be positive seconds')
  least = PIECE / (PATIENCE + 2 * timeout)
  if limit is not None and not limit >= least:
    raise ConfigError(
      f'limit={limit:g}: must be at least {math.ceil(least)} bytes per second, '
      f'so that {PIECE} bytes pass in twice the timeout of {timeout:g} s'
    )


def _digest(value: Any) -> str:
  return hashlib.sha256(str(value).encode()).hexdigest()[:16]


def relay(invitation: Invitation, timeout: float = 60.0) -> Relay:
  """Returns a relay in a process of an island that is not the first.

  Args:
    invitation: that of the coordinator, which serves already.
    timeout: that of the island, see `join`.

  Raises:
    RunError: if the coordinator cannot be reached.
  """
  credentials, host = _credentials(invitation, min(timeout, ANSWER))
  return Relay(host, credentials, PATIENCE + 2 * timeout)


def _credentials(
  invitation: Invitation, timeout: float
) -> tuple[Credentials, str]:
  """Returns those of the run, and this host's own address there."""
  key, host, certificate = ask(invitation, 'key', timeout)
  return Credentials(invitation.token, certificate, key), host
