"""The point where islands meet: it knows who is there, and holds no weights.

Whoever has the meeting point's invitation, one string, can join. An island says
its name, where it can be reached, and what it is about to run. When all are
there, each learns its index, where the others are, and the credentials of the
run.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import dataclasses
import hashlib
import json
import secrets
import socket
import ssl
import time
from typing import Any

from selsync_jax.config import RunError
from selsync_jax.islands.flight import call_options
from selsync_jax.islands.flight import client
from selsync_jax.islands.flight import create_credentials
from selsync_jax.islands.flight import Credentials
from selsync_jax.islands.flight import flight
from selsync_jax.islands.flight import FlightPeers
from selsync_jax.islands.flight import Outbox
from selsync_jax.islands.flight import Server
from selsync_jax.islands.peers import Peers


@dataclasses.dataclass(frozen=True)
class Invitation:
  """What an island must know to join a run.

  Attributes:
    address: `host:port` of the meeting point.
    token: the secret of the run.
    fingerprint: the SHA-256 of the run's certificate, in hexadecimal.
  """

  address: str
  token: str
  fingerprint: str

  def __str__(self) -> str:
    return f'{self.address}/{self.token}/{self.fingerprint}'

  @classmethod
  def parse(cls, text: str) -> 'Invitation':
    """Reads what `str` has written; a `RunError` if it is something else."""
    parts = text.strip().split('/')
    host, _, port = parts[0].rpartition(':')
    is_port = port.isdecimal() and 0 < int(port) < 2**16
    if len(parts) != 3 or not host or not is_port:
      raise RunError(
        f'{text!r} is not an invitation: HOST:PORT/TOKEN/FINGERPRINT, as the '
        'meeting point prints it'
      )
    return cls(*parts)


# Compared by identity: an island that joins again is another member.
@dataclasses.dataclass(frozen=True, eq=False)
class Member:
  """An island.

  Attributes:
    name: unique in the run.
    address: `host:port` where it serves its messages.
    run: a digest of what it is about to run.
  """

  name: str
  address: str
  run: str


class Gathering:
  """The islands that have joined, by name.

  Args:
    islands: N, the number of islands that are expected.
    names: the only ones that may join, if that is known.
  """

  def __init__(self, islands: int, names: Iterable[str] = ()):
    self.islands, self._expected = islands, set(names)
    self._run = ''  # What the first one is about to run.
    self._members: dict[str, Member] = {}

  @property
  def is_complete(self) -> bool:
    """Whether all islands have joined."""
    return len(self._members) == self.islands

  @property
  def members(self) -> list[Member]:
    """The islands in the order of their names, which that of indices is."""
    return [self._members[name] for name in sorted(self._members)]

  def add(self, member: Member) -> None:
    """Lets an island in; one that joins again takes the place that it had.

    Raises:
      ValueError: if it does not belong here.
    """
    others = sorted(self._members.keys() - {member.name})
    if others and self._run != member.run:
      raise ValueError(
        f'island {member.name} has another strategy, or other shapes, than '
        f'{", ".join(others)}; give all islands the same'
      )
    if self._expected and member.name not in self._expected:
      raise ValueError(
        f'island {member.name} is not one of '
        f'{", ".join(sorted(self._expected))}'
      )
    self._members[member.name] = member
    self._run = member.run

  def remove(self, member: Member) -> None:
    """Forgets an island that waits no longer, unless all have joined."""
    if not self.is_complete and member in self.members:
      del self._members[member.name]


class MeetingPoint(Server):
  """Serves gatherings to whoever has the invitation.

  Args:
    islands: N, the number of islands.
    host: the name or address by which islands reach this host.
    port: the port to listen at; 0 is a free one.
    timeout: seconds that an island waits for the others.
    say: a function that takes a line about each island that joins.
  """

  def __init__(
    self,
    islands: int,
    host: str = '127.0.0.1',
    port: int = 0,
    timeout: float = 600.0,
    say: Callable[[str], None] = lambda line: None,
  ):
    self._gathering, self._timeout = Gathering(islands), timeout
    self._say = say
    self._credentials = create_credentials(secrets.token_urlsafe(16))
    super().__init__(f'0.0.0.0:{port}', self._credentials)
    token, certificate, _ = self._credentials
    self.invitation = Invitation(
      f'{host}:{self.port}', token, _fingerprint(certificate)
    )

  def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
    """Answers `key` and `join`, the latter when all have joined."""
    if action.type == 'key':
      return iter([self._credentials.key])
    try:
      answer = self._join(_member(action.body.to_pybytes()), context)
    except ValueError as error:
      answer = {'refused': str(error)}
    return iter([json.dumps(answer).encode()])

  def _join(self, member: Member, context: Any) -> dict[str, Any]:
    deadline = time.monotonic() + self._timeout
    with self.changed:
      gathering = self._gathering
      if gathering.is_complete:  # Its islands have ended, and join again.
        names = [each.name for each in gathering.members]
        gathering = Gathering(gathering.islands, names)
      gathering.add(member)
      self._gathering = gathering
      self._say(
        f'{member.name} has joined from {member.address}: '
        f'{len(gathering.members)} of {gathering.islands}'
      )
      self.changed.notify_all()
      while (
        member in gathering.members
        and not gathering.is_complete
        and not context.is_cancelled()
        and not self.is_closed
        and time.monotonic() < deadline
      ):
        self.changed.wait(1.0)  # Who has been killed does not say so.
      members = gathering.members
      if member not in members:
        raise ValueError(f'another island has joined as {member.name}')
      gathering.remove(member)
      if not gathering.is_complete:
        raise ValueError(
          f'{len(members)} of {gathering.islands} islands have joined within '
          f'{self._timeout:g} s: {", ".join(each.name for each in members)}'
        )
    return {'islands': {each.name: each.address for each in members}}


def join(
  invitation: Invitation,
  name: str,
  run: str,
  timeout: float = 60.0,
  pace: float | None = None,
) -> Peers:
  """Joins a run, and returns its islands when all have joined.

  Args:
    invitation: the meeting point's invitation.
    name: this island's name, unique in the run.
    run: a digest of what this island is about to run, equal on all.
    timeout: seconds until the meeting point must answer, and later until an
      island that does not answer is an error.
    pace: the most bytes per second of one message; `None` is no limit.

  Raises:
    RunError: if the meeting point cannot be reached or refuses the island.
  """
  with contextlib.ExitStack() as stack:
    try:
      host, certificate = _reach(invitation, timeout)
      point = client(invitation.address, certificate)
      options = call_options(invitation.token, timeout)
      (key,) = point.do_action(flight.Action('key', b''), options)
      token, key = invitation.token, key.body.to_pybytes()
      credentials = Credentials(token, certificate, key)
      outbox = Outbox(f'{host}:0', credentials, timeout, pace)
      stack.callback(outbox.shutdown)
      hello = {'name': name, 'address': f'{host}:{outbox.port}', 'run': run}
      action = flight.Action('join', json.dumps(hello).encode())
      # The meeting point ends the call itself if an island does not join.
      (reply,) = point.do_action(action, call_options(token, None))
    except flight.FlightUnauthenticatedError as error:
      raise RunError(
        f'the meeting point {invitation.address} rejects the token of '
        'the invitation'
      ) from error
    except (OSError, ValueError, flight.FlightError) as error:
      raise RunError(
        f'the meeting point {invitation.address} cannot be reached'
      ) from error
    answer = json.loads(reply.body.to_pybytes())
    if 'refused' in answer:
      raise RunError(
        f'the meeting point {invitation.address}: {answer["refused"]}'
      )
    stack.pop_all()
  return FlightPeers(name, answer['islands'], outbox, credentials, timeout)


def _reach(invitation: Invitation, timeout: float) -> tuple[str, bytes]:
  """Returns this host's own address there, and the point's certificate.

  The point need not serve yet.
  """
  host, _, port = invitation.address.rpartition(':')
  context = ssl.create_default_context()
  context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
  deadline = time.monotonic() + timeout
  while True:
    try:
      plain = socket.create_connection((host, int(port)), timeout)
      break
    except OSError:
      if time.monotonic() >= deadline:
        raise
      time.sleep(0.2)
  with plain, context.wrap_socket(plain) as connection:
    found = connection.getpeercert(binary_form=True) or b''
    certificate = ssl.DER_cert_to_PEM_cert(found).encode()
    if _fingerprint(certificate) != invitation.fingerprint:
      raise RunError(
        f'the meeting point {invitation.address} is not that of the '
        'invitation: its certificate is another one'
      )
    return connection.getsockname()[0], certificate


def _member(hello: bytes) -> Member:
  """Reads what an island says; `ValueError` if it is something else."""
  fields = json.loads(hello)
  names = [field.name for field in dataclasses.fields(Member)]
  if not isinstance(fields, dict) or sorted(fields) != sorted(names):
    raise ValueError(f'an island says {", ".join(names)}, and nothing else')
  for name, value in fields.items():
    usable = isinstance(value, str) and value.isprintable()
    if not usable or not 0 < len(value) <= 200:
      raise ValueError(f'{name}: must be a text of 1 to 200 characters')
  return Member(**fields)


def _fingerprint(certificate: bytes) -> str:
  found = ssl.PEM_cert_to_DER_cert(certificate.decode())
  return hashlib.sha256(found).hexdigest()
