"""The processes of one JAX world as members of a coordinator in process 0.

JAX's own coordination service compares no configs. If a process dies or two
have one index, it aborts the others with a C++ stack trace, in general only
after its heartbeat timeout. A process that fails cannot tell the others, which
wait for it in a collective.

Here process 0 checks, before JAX starts, that all processes match, and refuses
a mismatch with one line. The connections then stay open, so a process that dies
is noticed at once, and a failing process reports its failure. All of them send
signs of life; a process that is silent for too long counts as lost.

The processes also agree on the step after which all stop. JAX has a service for
that, but a thread that asks it holds Python's lock until process 0 answers: if
process 0 has died, no other thread could report its end or end this process.
"""

import atexit
from collections.abc import Callable, Mapping
import contextlib
import errno
import functools
import ipaddress
import os
import socket
import threading
import time
from typing import Any

from selsync_jax.cluster import signals
from selsync_jax.cluster.connection import (
  dial,
  listen_everywhere,
  SignedFrames,
)
from selsync_jax.cluster.link import FAREWELL, Link
from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.coordinator import Coordinator
from selsync_jax.cluster.protocol.member import Flow, Member
from selsync_jax.cluster.protocol.seats import FAILED, GONE, Refusal, Seat
from selsync_jax.cluster.server import Server
from selsync_jax.config import RunError

SILENT = 'does not answer'
# The seconds after another process's failure in which a process may report
# its own, before it is ended.
GRACE = 5.0
# The seconds for which a process that has finished waits for the others, as
# `jax.distributed.shutdown` does.
LEAVING = 300.0


class World:
  """The connections of one process. The constructor waits for all processes.

  Process 0 sends its `offer` to all.

  Args:
    address: `host:port` at which process 0 listens.
    process: the index of this process.
    agreed: values by name that must be equal in all processes, `processes`
      among them, their number.
    offer: text that the others receive from process 0.
    timeout: seconds to wait for the other processes, and until a silent process
      counts as lost.
    token: secret of these processes.

  Attributes:
    offer: process 0's offer.
    agreement: this process's part in the step after which all stop.

  Raises:
    RunError: if a process is missing, or does not match the others.
  """

  def __init__(
    self,
    address: str,
    process: int,
    agreed: Mapping[str, Any],
    offer: str,
    timeout: float,
    token: str = '',
  ):
    self._process, self._leaving = process, threading.Event()
    short = messages.short
    run = {
      short(name): short(value)
      for name, value in agreed.items()
      if value is not None
    }
    join = messages.Join(str(process), offer, run, timeout, welcomes=False)
    member = Process(join, address)
    calls = functools.partial(SignedFrames, token=token, listens=False)
    self._server: Server | None = None
    if process == 0:
      machine = Processes(run, agreed['processes'], timeout)
      listening, (own, its) = listen(address), socket.socketpair()
      hears = functools.partial(SignedFrames, token=token, listens=True)
      self._server = server = Server(machine, hears, parting=3 * GRACE)
      server.accept(its)
      self._link = Link(member, lambda: own, calls)
      machine.has_first.wait(timeout)
      server.listen(listening)
    else:
      dials = functools.partial(dial, address, timeout)
      self._link = Link(member, dials, calls)
    self.agreement = self._link.agreement
    try:
      self._link.run(member.enter())
    except BaseException:
      self._end(FAREWELL, member.fail)
      raise
    assert member.membership
    self.offer = member.membership.islands['0']
    threading.Thread(target=self._watch, daemon=True).start()
    # The other processes then end with the same exit code.
    signals.before_stop(self._stop)

  def leave(self) -> None:
    """Reports success, and waits until all processes have done so.

    Meanwhile this process ends if another one fails, or after `LEAVING`.
    """
    try:
      self._link.run(self._leave())
    except RunError:
      time.sleep(2 * GRACE)  # `_watch` ends this process.
      raise

  def _leave(self) -> Flow[None]:
    member, deadline = self._link.member, time.monotonic() + LEAVING
    for _ in member.answer(member.arrive('leave')):
      if time.monotonic() > deadline:
        line = f'the others have not finished within {LEAVING:g} s'
        member.fail(line)
        member.error = RunError(line)
        raise member.error
      yield
    self._leaving.set()

  def close(self) -> None:
    """Lets this process continue alone, after all have left."""
    self._end(FAREWELL, lambda: None)

  def fail(self, code: int) -> None:
    """Reports failure: the other processes fail as well, or are ended.

    This process exits with the code before JAX's own exit handler, which would
    wait for the others.
    """
    # JAX aborts processes that outlive process 0.
    self._end(2 * GRACE, self._link.member.fail)
    atexit.register(os._exit, code)

  def _end(self, seconds: float, do: Callable[..., None], *args: Any) -> None:
    """Ends the connections, after a last call of the member.

    Process 0 waits at most these seconds until the others have ended.
    """
    self._leaving.set()
    self._link.close(do, *args)
    if self._server:
      self._server.drain(seconds)
      self._server.shutdown()

  def _stop(self, code: int) -> None:
    self._end(FAREWELL, self._link.member.fail, '', code)

  def _watch(self) -> None:
    """Waits until another process ends, and ends this one too."""
    link = self._link
    with link.changed:
      link.changed.wait_for(lambda: link.member.error)
    error = link.member.error
    if f'{error}'.endswith(FAILED):
      self._leaving.wait(GRACE)
    if not self._leaving.is_set():
      signals.end(
        getattr(error, 'code', 1),
        f'process {self._process}: {error}; restart all processes to resume '
        'from the last checkpoint',
      )


class Process(Member):
  """The member of a process of a JAX world; without process 0, it ends."""

  _why = 'it does not answer'

  def lost(self, why: str = '', is_stranger: bool = False) -> None:
    """Ends this process, unless it still waits to join."""
    super().lost()
    if is_stranger:
      self.end(RunError(f'process 0 at {self.address}: {why}'))
    elif self.membership or self.upcoming:
      self.end(RunError(f'process 0 {GONE}'))
    self._why = why or 'it closed the connection'

  def _miss(self, timeout: float) -> None:
    line = f'process 0 {SILENT}'
    if not (self.membership or self.upcoming):
      line = (
        f'process 0 could not be reached at {self.address} within '
        f'{timeout:g} s: {self._why}'
      )
    self.end(RunError(line))

  def _hear_end(self, ended: messages.Ended) -> None:
    line = ended.line
    if ended.kind != 'refused' and line.startswith(
      f'process {self.join.name} '
    ):
      line = f'process 0 {GONE}'  # This process was frozen.
    error = RunError(line)
    error.code = ended.code
    self.end(error)

  def stops_after(self, step: int) -> Flow[bool]:
    """Returns whether all stop after this step.

    It raises no error: if another process has ended, this one is ended, or
    fails for the same reason.
    """
    while self._reached is not None and self.last is None:
      yield
    self._passed = step
    return self.last is not None and step >= self.last


class _Seat(Seat):
  """A process of a JAX world, as its coordinator sees it."""

  @property
  def title(self) -> str:
    """The process's name in a sentence."""
    return f'process {self.name}'

  @property
  def silence(self) -> str:
    """The fate of a process that is silent for too long."""
    return SILENT


class Processes(Coordinator):
  """The coordinator of a JAX world; each process is needed.

  Args:
    agreed: values of process 0 by name, as in `messages.Join.run`.
    processes: the number of processes.
    timeout: seconds to wait for all of them.

  Attributes:
    has_first: set when process 0 has joined.
  """

  _seat = _Seat

  def __init__(self, agreed: Mapping[str, str], processes: int, timeout: float):
    super().__init__(processes, processes, timeout, None, '', lambda *_: None)
    self._agreed = agreed
    self._refusal = ''  # Of the last process with the token.
    self.has_first = threading.Event()

  def _try(self, seat: Seat) -> None:
    if reason := self._objection(seat.join):
      self._refusal = reason
      self._refuse(seat, Refusal(reason))
    else:
      super()._try(seat)
      self.has_first.set()

  def _objection(self, join: messages.Join) -> str:
    """Returns why a process that has the token does not belong to this run."""
    for name in {**self._agreed, **join.run}:
      own, its = (run.get(name) for run in (self._agreed, join.run))
      if own != its:
        return (
          f'process {join.name} has {name} {_shown(its)}, process 0 has '
          f'{_shown(own)}'
        )
    if join.name not in map(str, range(self.islands)):
      return f'process {join.name} is not one of {self.islands} processes'
    if self._run or join.name in self._waiting:
      return f'two processes have the index {join.name}'
    return ''

  def _stop_waiting(self) -> None:
    """Refuses all processes that wait."""
    seats = self._waiting
    missing = [i for i in map(str, range(self.islands)) if i not in seats]
    reason = (
      f'of {self.islands} processes, process{"es" * (len(missing) > 1)} '
      f'{", ".join(missing)} did not connect within {self._timeout:g} s'
    )
    if self._refusal:
      reason += f': {self._refusal}'
    for seat in [*seats.values()]:
      self._forget(seat)
      self._refuse(seat, Refusal(reason))


def _shown(value: str | None) -> str:
  text = str(value)
  return text if len(text) <= 60 else f'{text[:57]}...'


def listen(address: str) -> socket.socket:
  """Returns a server on the host's own interface, or else on all of them.

  The name may stand for another address on the other hosts: a router's that
  forwards the port, or if this host calls itself 127.0.1.1.

  Raises:
    RunError: if the port cannot be opened.
  """
  name, _, port = address.rpartition(':')
  try:
    return _server(name.strip('[]'), int(port))
  except OSError as error:
    reason = os.strerror(error.errno or 0)
    raise RunError(
      f'process 0 cannot listen on port {port} ({reason}); '
      'is another process 0 running on this host?'
    ) from error


def _server(host: str, port: int) -> socket.socket:
  addresses = []
  with contextlib.suppress(OSError):
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = sorted({entry[4][0]: entry[0] for entry in found}.items())
  for address, family in sorted(addresses, key=lambda entry: entry[1]):
    named = host == 'localhost' or host == address
    if named or not ipaddress.ip_address(address).is_loopback:
      try:
        return socket.create_server((address, port), family=family)
      except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
          raise
  return listen_everywhere(port)
