"""How an island joins the others.

Anyone with the coordinator's invitation, one string, can join. An island
sends its name, its address, and a description of its program. When all have
joined, each receives its index, the addresses of the others, and the
credentials of the run.
"""

from collections.abc import Callable, Mapping
import functools
import math
import pathlib
from typing import Any

import jax

from selsync_jax.cluster.connection import dial, host_port
from selsync_jax.cluster.link import Link
from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.member import Member
from selsync_jax.config import ConfigError
from selsync_jax.islands.audit import Audit
from selsync_jax.islands.credentials import (
  ask,
  client_context,
  Credentials,
  Invitation,
  InvitedFrames,
)
from selsync_jax.islands.exchange import FlightPeers
from selsync_jax.islands.flight import Outbox, PATIENCE, PIECE
from selsync_jax.islands.led import Led
from selsync_jax.islands.peers import Peers
from selsync_jax.islands.relay import HOST


def join(
  invitation: Invitation,
  name: str,
  run: Any,
  timeout: float = 60.0,
  limit: float | None = None,
  port: int = 0,
  relay: bool = False,
  welcomes: bool = False,
  slot: int | None = None,
  say: Callable[[str], None] = lambda line: None,
  audit: pathlib.Path | None = None,
) -> Peers:
  """Joins a run, and returns its islands when all have joined.

  If the others are training already, this island `prepares`; see `Peers`. If
  it consists of several processes, all of them call this.

  Args:
    invitation: the coordinator's invitation.
    name: name of this island, unique in the run.
    run: description of this island's program, equal on all; if it is a
      mapping, a refusal names the entries that differ.
    timeout: seconds until the coordinator must answer, and for which this
      island may be silent.
    limit: the most bytes per second that this island sends in messages; `None`
      sets no limit.
    port: port to listen at; 0 is a free one.
    relay: whether messages of this island, both ways, pass only through the
      coordinator; otherwise, they do if another island cannot be reached.
    welcomes: whether this island admits islands while it runs.
    slot: slot that it had before, if it knows one.
    say: takes a line when this island waits long for others, or when one
      sends unusual values.
    audit: file to which everything that this island sends is added.

  Raises:
    ConfigError: if an argument is out of its range, or the port or the audit
      cannot be opened.
    RunError: if the coordinator cannot be reached or refuses the island.
    FinishedError: if the run has finished; `enter` raises it later, too.
  """
  check(timeout, limit, port)
  described = run if isinstance(run, Mapping) else {'what it runs': run}

  def connect() -> Peers:
    evidence = Audit(audit, name)
    key, host, certificate = ask(invitation, 'key', timeout)
    credentials = Credentials(invitation.token, certificate, key)
    host = '127.0.0.1' if relay else host
    outbox = Outbox(
      host_port(host, port), credentials, name, invitation.address, limit
    )
    introduction = messages.Join(
      name,
      host_port(HOST if relay else host, outbox.port),
      {entry: messages.short(value) for entry, value in described.items()},
      timeout,
      welcomes,
      slot,
    )
    link = Link(
      Member(introduction, invitation.address),
      functools.partial(dial, invitation.address, timeout),
      functools.partial(InvitedFrames, invitation),
      say,
      {
        'ssl': client_context(),
        'server_hostname': '',
        'ssl_handshake_timeout': timeout,
      },
    )
    outbox.count, link.called = link.count, outbox.called
    try:
      link.run(link.member.enter())
    except BaseException as error:
      outbox.shutdown()
      link.close(link.member.fail, f'{error}')
      raise
    return FlightPeers(link, outbox, credentials, evidence)

  return Led(connect) if jax.process_count() > 1 else connect()


def check(timeout: float, limit: float | None, port: int) -> None:
  """Raises `ConfigError` for an argument of `join` out of its range."""
  if not (math.isfinite(timeout) and timeout > 0):
    raise ConfigError(f'timeout={timeout:g}: must be positive seconds')
  least = PIECE / (PATIENCE + 2 * timeout)
  if limit is not None and not limit >= least:
    raise ConfigError(
      f'limit={limit:g}: must be at least {math.ceil(least)} bytes per second, '
      f'so that {PIECE} bytes pass in twice the timeout of {timeout:g} s'
    )
  if port not in range(65536):
    raise ConfigError(f'port={port}: must be a port, from 0 to 65535')
