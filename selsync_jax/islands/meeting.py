"""The point where islands meet: it knows who is there, and holds no weights.

Whoever has the meeting point's invitation, one string, can join. An island says
its name, where it can be reached, and what it is about to run. When all are
there, each learns its index, where the others are, and the credentials of the
run.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import hashlib
import json
import pathlib
import threading
import time
from typing import Any

from selsync_jax.islands.circle import Circle
from selsync_jax.islands.control import (
  BEAT,
  Control,
  decode,
  FinishedError,
  Member,
)
from selsync_jax.islands.flight import (
  call_options,
  create_credentials,
  Credentials,
  flight,
  Server,
)
from selsync_jax.islands.gathering import Gathering, LateError
from selsync_jax.islands.invitation import fingerprint, Invitation, reach
from selsync_jax.islands.journal import Journal
from selsync_jax.islands.messages import FlightPeers, Members
from selsync_jax.islands.meter import Meter
from selsync_jax.islands.outbox import Outbox, PATIENCE
from selsync_jax.islands.peers import Peers
from selsync_jax.islands.relay import Relay
from selsync_jax.islands.seat import Seat
from selsync_jax.islands.standing import Standing

ANSWER = 5.0
"""Seconds until a meeting point that serves must have answered."""


class MeetingPoint(Server):
  """Serves gatherings to whoever has the invitation.

  Args:
    islands: N, the number of islands.
    host: the name or address by which islands reach this host.
    port: the port to listen at; 0 is a free one.
    timeout: seconds that an island waits for the others; then those that are
      there begin, if they are enough.
    say: a function that takes a line about each island that comes or goes.
    minimum: the least number of islands that train; `None` is all of them.
    credentials: those of the run; `None` makes new ones.
    log: see `Journal`.
    grace: see `Circle`.
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
    self._journal, self._timeout = Journal(say, log), timeout
    self._gathering = Gathering(
      islands, minimum or islands, self._journal, grace=grace
    )
    self._serving: dict[Seat, Circle | None] = {}
    self._credentials = credentials or create_credentials()
    address = f'0.0.0.0:{port}'
    super().__init__(address, self._credentials, self._journal.remark)
    token, certificate, _ = self._credentials
    self.invitation = Invitation(
      f'{host}:{self.port}', token, fingerprint(certificate)
    )
    threading.Thread(target=self._beat, daemon=True).start()

  def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
    """Returns the key of the run's certificate, or the `status` in JSON."""
    del context
    if action.type == 'status':
      return iter([json.dumps(self.status()).encode()])
    return iter([self._credentials.key])

  def status(self) -> dict[str, Any]:
    """Returns what the islands are doing; see `status.status`."""
    with self.changed:
      return self._gathering.status()

  def do_exchange(
    self, context: Any, descriptor: Any, reader: Any, writer: Any
  ) -> None:
    """Serves an island, from its hello to its end; see `control`."""
    del descriptor
    seat, waits = Seat(writer), True
    self._serving[seat] = None
    try:
      hello, _ = decode(reader.read_chunk())
      seat.member, seat.standing = _introduced(hello)
      while waits:
        circle = self._serving[seat] = self._join(seat, context)
        seat.standing = None  # It knows what the others do.
        waits = circle.listen(seat, reader)
        self._serving[seat] = None
        if waits:
          _check_unfinished(circle, seat.member)
    except (ValueError, FinishedError) as error:
      about = {
        'refused': str(error),
        'finished': isinstance(error, FinishedError),
        'lost': isinstance(error, LateError),
      }
      if not self.is_closed:  # Else it may come to another point.
        seat.send(about)
    finally:
      del self._serving[seat]
      seat.close()

  def _join(self, seat: Seat, context: Any) -> Circle:
    """Returns those who run, among whom it may come, or waits for all."""
    while True:  # Others may go on without it, or end, meanwhile.
      with self.changed:
        circle = self._gathering.circle
        if seat.standing or not circle or circle.is_over:
          if met := self._gather(seat, context):
            return met
          continue
        self._gathering.check(seat.member)
      if seat.member.welcomes:
        circle.receive(seat)
        return circle
      circle.await_end(seat.member.name)

  def _gather(self, seat: Seat, context: Any) -> Circle | None:
    """Waits for all; returns those who go on, if this island is among them.

    Raises:
      ValueError: if it does not belong to them, or some have not come in time,
        or it has ended, or this point is about to.
      FinishedError: if there is nothing left to do.
    """
    gathering, member = self._gathering, seat.member
    if gathering.circle and not seat.standing:
      if member.welcomes:
        _check_unfinished(gathering.circle, member)
      gathering = gathering.again()
    gathering.add(seat)
    self._gathering = gathering
    self.changed.notify_all()
    timeout = member.timeout if seat.standing else self._timeout
    deadline = time.monotonic() + timeout
    while seat in gathering.seats and not gathering.circle:
      if time.monotonic() >= deadline:
        gathering.close()
        break
      self.changed.wait(BEAT)  # Who has been killed does not say so.
      is_gone = context.is_cancelled() or self.is_closed
      if is_gone and not gathering.circle:  # Else it must hear of its end.
        gathering.remove(seat)
        raise ValueError('waits no longer')
    seats = gathering.seats
    if any(s is not seat and s.member.name == member.name for s in seats):
      raise ValueError(f'another island has joined as {member.name}')
    if gathering.circle:
      return gathering.circle if seat in seats else None
    gathering.remove(seat)
    raise ValueError(
      f'{len(seats)} of {gathering.islands} islands have joined within '
      f'{timeout:g} s: {", ".join(s.member.name for s in seats)}'
    )

  def shutdown(self) -> None:
    """Ends the islands' connections, and stops serving.

    The islands look for another meeting point with these credentials.
    """
    if self._gathering.circle:
      self._gathering.circle.close()
    for seat in list(self._serving):
      seat.send({'closes': True})
    super().shutdown()
    self._journal.close()

  def _beat(self) -> None:
    """Sends signs of life to all islands, until this server shuts down."""
    while not self.is_closed:
      time.sleep(BEAT)
      for seat, circle in list(self._serving.items()):
        if circle:
          circle.beat(seat)
        else:  # Nobody reads answers yet, so it must not answer.
          seat.send({'waits': True})


def join(
  invitation: Invitation,
  name: str,
  run: str,
  timeout: float = 60.0,
  limit: float | None = None,
  welcomes: bool = False,
  slot: int | None = None,
  relays: Sequence[str] = (),
) -> Peers:
  """Joins a run, and returns its islands when all have joined.

  If they train already, it `prepares`; see `Peers`.

  Args:
    invitation: the meeting point's invitation.
    name: this island's name, unique in the run.
    run: what this island is about to run, equal on all.
    timeout: seconds until the meeting point must answer, and later until an
      island that does not answer is an error.
    limit: the most bytes per second that this island sends of messages; `None`
      sets none.
    welcomes: whether this island lets in those who come while it runs.
    slot: the place that it has had among the run's islands, if it knows one.
    relays: the address of each `relay` of its other processes.

  Raises:
    RunError: if the meeting point cannot be reached or refuses the island.
    FinishedError: if there is nothing left to do; also when it enters later.
  """
  meter = Meter()
  with contextlib.ExitStack() as stack:
    with reach(invitation, timeout) as (host, certificate, point):
      token = invitation.token
      credentials = _credentials(token, certificate, point, timeout)
      outbox = Outbox(f'{host}:0', credentials, meter, limit)
      stack.callback(outbox.shutdown)
      address = f'{host}:{outbox.port}'
      digest = hashlib.sha256(run.encode()).hexdigest()
      member = Member(name, address, digest, timeout, welcomes, slot, relays)
      control = Control(point, invitation.address, token, member, meter)
      stack.callback(control.fail)
    members = Members(control.enter())
    stack.pop_all()
  return FlightPeers(
    name, members, outbox, control, credentials, meter, timeout
  )


def relay(invitation: Invitation, timeout: float = 60.0) -> Relay:
  """Returns a relay in a process of an island that is not the first.

  Args:
    invitation: that of the meeting point, which serves already.
    timeout: that of the island, see `join`.

  Raises:
    RunError: if the meeting point cannot be reached.
  """
  seconds = min(timeout, ANSWER)
  with reach(invitation, seconds) as (host, certificate, point):
    token = invitation.token
    credentials = _credentials(token, certificate, point, seconds)
    return Relay(host, credentials, PATIENCE + 2 * timeout)


def _credentials(
  token: str, certificate: bytes, point: flight.FlightClient, timeout: float
) -> Credentials:
  """Returns those of the run, of which a meeting point has the key."""
  options = call_options(token, timeout)
  (key,) = point.do_action(flight.Action('key', b''), options)
  return Credentials(token, certificate, key.body.to_pybytes())


def _check_unfinished(circle: Circle, member: Member) -> None:
  """Raises `FinishedError` if there is nothing left to do for an island."""
  if circle.has_finished_without(member):
    raise FinishedError('the others have finished this run')


def _introduced(hello: Any) -> tuple[Member, Standing | None]:
  """Reads what an island says; `ValueError` if it is something else."""
  fields = [field.name for field in dataclasses.fields(Member)]
  if not isinstance(hello, dict) or sorted(hello) != sorted(
    [*fields, 'standing']
  ):
    raise ValueError(f'an island says {", ".join(fields)}, and its standing')
  standing = hello.pop('standing')
  member = Member(**hello)
  if not isinstance(member.relays, list):
    raise ValueError('relays: must be a list')
  texts = [(name, getattr(member, name)) for name in ('name', 'address', 'run')]
  for name, value in [*texts, *(('relays', each) for each in member.relays)]:
    usable = isinstance(value, str) and value.isprintable()
    if not usable or not 0 < len(value) <= 200:
      raise ValueError(f'{name}: must be a text of 1 to 200 characters')
  if not isinstance(member.timeout, float | int) or not member.timeout > 0:
    raise ValueError('timeout: must be a positive number')
  if not isinstance(member.welcomes, bool):
    raise ValueError('welcomes: must be true or false')
  if not isinstance(member.slot, int | None):
    raise ValueError('slot: must be a whole number or null')
  return member, standing and Standing.from_json(standing)
