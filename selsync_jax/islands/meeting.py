"""The point where islands meet: it knows who is there, and holds no weights.

Whoever has the meeting point's invitation, one string, can join. An island says
its name, where it can be reached, and what it is about to run. When all are
there, each learns its index, where the others are, and the credentials of the
run.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import hashlib
import json
import math
import pathlib
import threading
import time
from typing import Any

from selsync_jax.islands.circle import Circle
from selsync_jax.islands.control import BEAT
from selsync_jax.islands.control import Control
from selsync_jax.islands.control import decode
from selsync_jax.islands.control import FinishedError
from selsync_jax.islands.control import Member
from selsync_jax.islands.flight import call_options
from selsync_jax.islands.flight import create_credentials
from selsync_jax.islands.flight import Credentials
from selsync_jax.islands.flight import flight
from selsync_jax.islands.flight import Server
from selsync_jax.islands.gathering import Gathering
from selsync_jax.islands.gathering import Reunion
from selsync_jax.islands.invitation import fingerprint
from selsync_jax.islands.invitation import Invitation
from selsync_jax.islands.invitation import reach
from selsync_jax.islands.messages import FlightPeers
from selsync_jax.islands.messages import Members
from selsync_jax.islands.meter import Meter
from selsync_jax.islands.outbox import Outbox
from selsync_jax.islands.peers import Peers
from selsync_jax.islands.seat import Seat
from selsync_jax.islands.standing import Standing
from selsync_jax.runs.journal import Journal


class MeetingPoint(Server):
  """Serves gatherings to whoever has the invitation.

  Args:
    islands: N, the number of islands.
    host: the name or address by which islands reach this host.
    port: the port to listen at; 0 is a free one.
    timeout: seconds that an island waits for the others.
    say: a function that takes a line about each island that comes or goes.
    minimum: the least number of islands that go on when others have ended;
      `None` is all of them.
    credentials: those of the run; `None` makes new ones.
    log: see `Journal`.
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
  ):
    self._journal, self._timeout = Journal(say, log), timeout
    self._gathering = Gathering(islands, minimum or islands, self._journal)
    self._serving: dict[Seat, Circle | None] = {}
    self._credentials = credentials or create_credentials()
    super().__init__(f'0.0.0.0:{port}', self._credentials)
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
      seat.member, standing = _introduced(hello)
      while waits:
        circle = self._serving[seat] = self._join(seat, standing, context)
        standing = None
        waits = circle.listen(seat, reader)
        self._serving[seat] = None
        if waits:
          _check_unfinished(circle, seat.member)
    except (ValueError, FinishedError) as error:
      has_finished = isinstance(error, FinishedError)
      if not self.is_closed:  # Else it may come to another point.
        seat.send({'refused': str(error), 'finished': has_finished})
    finally:
      del self._serving[seat]
      seat.close()

  def _join(
    self, seat: Seat, standing: Standing | None, context: Any
  ) -> Circle:
    """Returns those who run, among whom it may come, or waits for all."""
    circle = None
    while not circle:  # Else others meet again, whom this island waits for.
      if standing:
        with self.changed:
          reunion = self._reunion(seat.member)
          reunion.find(seat, standing)
          circle = self._wait(reunion, seat, context, seat.member.timeout)
      else:
        circle = self._come(seat, context)
    return circle

  def _come(self, seat: Seat, context: Any) -> Circle | None:
    """Returns those who run, among whom it may come, or waits for all."""
    member = seat.member
    with self.changed:
      if reunion := self._open_reunion:
        reunion.miss(member.name)
        self._wait_while(lambda: reunion is self._open_reunion, context)
      circle = self._gathering.circle
      if circle and not circle.is_over:
        self._gathering.check(member)
    if circle and member.welcomes:
      if not circle.is_over:
        circle.receive(seat)
        return circle
      _check_unfinished(circle, member)
    elif circle:
      circle.await_end(member.name)
    with self.changed:
      if self._open_reunion:
        return None
      gathering = self._gathering
      names = [each.member.name for each in gathering.seats]
      if gathering.circle or isinstance(gathering, Reunion):
        # Its islands have ended, and join again; or none is left in it.
        sizes = gathering.islands, gathering.minimum
        gathering = Gathering(*sizes, self._journal, names)
      gathering.add(seat)
      self._gathering = gathering
      return self._wait(gathering, seat, context, self._timeout)

  @property
  def _open_reunion(self) -> Reunion | None:
    """Where islands find each other again now, if they do."""
    now = self._gathering
    if isinstance(now, Reunion) and now.seats and not now.circle:
      return now
    return None

  def _reunion(self, member: Member) -> Reunion:
    """Returns where islands of a run meet again that this point has not served.

    Raises:
      ValueError: if it has.
    """
    now = self._gathering
    if now.circle or now.is_again:
      raise ValueError(f'the others went on without island {member.name}')
    if not isinstance(now, Reunion):
      now = Reunion(now.islands, now.minimum, self._journal)
    self._gathering = now
    return now

  def _wait(
    self, gathering: Gathering, seat: Seat, context: Any, timeout: float
  ) -> Circle | None:
    """Returns the islands of a gathering when all are there.

    It is `None` if others meet instead, who know a run.
    """
    self.changed.notify_all()
    try:
      in_time = self._wait_while(
        lambda: (
          seat in gathering.seats
          and not gathering.circle
          and gathering is self._gathering
        ),
        context,
        timeout,
      )
    except ValueError:
      gathering.remove(seat)
      raise
    if not in_time:
      gathering.close()
    if not gathering.circle and gathering is not self._gathering:
      return None
    seats = gathering.seats
    if seat not in seats:
      raise ValueError(
        f'another island has joined as {seat.member.name}, or it has ended'
      )
    gathering.remove(seat)
    if not gathering.circle:
      raise ValueError(
        f'{len(seats)} of {gathering.islands} islands have joined within '
        f'{timeout:g} s: {", ".join(s.member.name for s in seats)}'
      )
    return gathering.circle

  def _wait_while(
    self, waits: Callable[[], bool], context: Any, timeout: float = math.inf
  ) -> bool:
    """Waits as long as `waits()`; returns false if that is too long.

    Raises:
      ValueError: if the call has ended, or this point is about to.
    """
    deadline = time.monotonic() + timeout
    while waits():
      if time.monotonic() >= deadline:
        return False
      self.changed.wait(BEAT)  # Who has been killed does not say so.
      if context.is_cancelled() or self.is_closed:
        raise ValueError('waits no longer')
    return True

  def shutdown(self) -> None:
    """Ends the islands' connections, and stops serving.

    The islands look for another meeting point with these credentials.
    """
    if self._gathering.circle:
      self._gathering.circle.close()
    for seat in list(self._serving):
      seat.send({'closes': True})
    super().shutdown()

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
  pace: float | None = None,
  welcomes: bool = False,
) -> Peers:
  """Joins a run, and returns its islands when all have joined.

  If they train already, it `prepares`; see `Membership`.

  Args:
    invitation: the meeting point's invitation.
    name: this island's name, unique in the run.
    run: what this island is about to run, equal on all.
    timeout: seconds until the meeting point must answer, and later until an
      island that does not answer is an error.
    pace: the most bytes per second of one message; `None` is no limit.
    welcomes: whether this island lets in those who come again while it runs.

  Raises:
    RunError: if the meeting point cannot be reached or refuses the island.
    FinishedError: if there is nothing left to do; also when it enters later.
  """
  meter = Meter()
  with contextlib.ExitStack() as stack:
    with reach(invitation, timeout) as (host, certificate, point):
      options = call_options(invitation.token, timeout)
      (key,) = point.do_action(flight.Action('key', b''), options)
      token, key = invitation.token, key.body.to_pybytes()
      credentials = Credentials(token, certificate, key)
      outbox = Outbox(f'{host}:0', credentials, meter, pace)
    stack.callback(outbox.shutdown)
    address = f'{host}:{outbox.port}'
    digest = hashlib.sha256(run.encode()).hexdigest()
    member = Member(name, address, digest, timeout, welcomes)
    control = Control(point, invitation.address, token, member, meter)
    members = Members(control.enter())
    stack.pop_all()
  return FlightPeers(
    name, members, outbox, control, credentials, meter, timeout
  )


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
  for name in ('name', 'address', 'run'):
    value = getattr(member, name)
    usable = isinstance(value, str) and value.isprintable()
    if not usable or not 0 < len(value) <= 200:
      raise ValueError(f'{name}: must be a text of 1 to 200 characters')
  if not isinstance(member.timeout, float | int) or not member.timeout > 0:
    raise ValueError('timeout: must be a positive number')
  if not isinstance(member.welcomes, bool):
    raise ValueError('welcomes: must be true or false')
  return member, standing and Standing.from_json(standing)
