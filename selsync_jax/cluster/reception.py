"""Reception at process 0: accepts the run's processes, rejects strangers.

A thread for each caller listens for a few seconds, so no caller can block the
others. A stranger is refused, and the run continues to wait for its own
processes.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import threading
import time
from typing import Any

from selsync_jax.cluster.link import Link, StrangerError
from selsync_jax.config import RunError

HEARING = 10.0  # Seconds that a caller has to introduce itself.
_STRANGERS = 64  # Callers heard at a time, besides the run's.


class ClusterError(RunError):
  """The error when the processes of a run cannot connect or do not match."""


class Reception:
  """Accepts callers at `host:port` until it is closed; see `Channel`."""

  def __init__(self, address: str, agreed: dict[str, Any], token: str):
    self._agreed, self._token = agreed, token
    self._admitted: dict[int, Link] = {}
    self._refusal = ''  # Refusal of the last process with the token.
    self._heard: list[socket.socket] = []
    self._change = threading.Condition()
    self._complete = self._closed = False
    host, _, port = address.rpartition(':')
    try:
      self._server = _listen(host.strip('[]'), int(port))
    except OSError as error:
      reason = os.strerror(error.errno or 0)
      raise ClusterError(
        f'process 0 cannot listen on port {port} ({reason}); '
        'is another process 0 running on this host?'
      ) from error
    threading.Thread(target=self._serve, daemon=True).start()

  def wait(self, timeout: float) -> dict[int, Link]:
    """Waits for all other processes, and returns the links to them by index."""
    processes = self._agreed['processes']
    with self._change:
      self._change.wait_for(self._is_complete, timeout)
      missing = sorted(set(range(1, processes)) - self._admitted.keys())
      if not missing:
        self._complete = True
        return dict(self._admitted)
      reason = (
        f'of {processes} processes, process{"es" * (len(missing) > 1)} '
        f'{", ".join(map(str, missing))} did not connect within {timeout:g} s'
      )
      if self._refusal:
        reason += f': {self._refusal}'
      for link in self._admitted.values():
        _refuse(link, reason)
    self.close()
    raise ClusterError(reason)

  def _is_complete(self) -> bool:
    """Whether all processes are connected; dead processes are removed."""
    for index, link in list(self._admitted.items()):
      if link.is_closed():
        self._admitted.pop(index).close()
    return len(self._admitted) == self._agreed['processes'] - 1

  def close(self) -> None:
    """Frees the port."""
    self._closed = True
    with contextlib.suppress(OSError):
      self._server.shutdown(socket.SHUT_RDWR)  # Ends a call of `accept`.
    self._server.close()

  def _serve(self) -> None:
    while not self._closed:
      try:
        caller, _ = self._server.accept()
      except OSError:
        time.sleep(0.1)  # There may be too many open files for a moment.
        continue
      with self._change:
        self._heard.append(caller)
        # The run's own processes introduce themselves at once and call again
        # if they are cut off, so the oldest caller is likely to be a stranger.
        if len(self._heard) > self._agreed['processes'] + _STRANGERS:
          with contextlib.suppress(OSError):
            self._heard.pop(0).shutdown(socket.SHUT_RDWR)
      threading.Thread(target=self._hear, args=(caller,), daemon=True).start()

  def _hear(self, caller: socket.socket) -> None:
    deadline = time.monotonic() + HEARING
    link = None
    try:
      link = Link(caller, self._token, listens=True, deadline=deadline)
      self._admit(link, link.receive(deadline))
    except OSError as error:
      if link and isinstance(error, StrangerError):
        _refuse(link, str(error))
      caller.close()
    with self._change, contextlib.suppress(ValueError):
      self._heard.remove(caller)

  def _admit(self, link: Link, hello: dict[str, Any]) -> None:
    index, agreed = hello.get('process'), hello.get('agreed')
    if type(index) is not int or not isinstance(agreed, dict):
      raise StrangerError('it does not say which process it is')
    with self._change:
      reason = self._objection(index, agreed)
      if reason is None:
        if gone := self._admitted.get(index):
          gone.close()
        self._admitted[index] = link
        self._change.notify_all()
        return
      self._refusal = reason
    _refuse(link, reason)

  def _objection(self, index: int, agreed: dict[str, Any]) -> str | None:
    """Returns why a process that has the token does not belong to this run."""
    processes = self._agreed['processes']
    for name, value in self._agreed.items():
      if agreed.get(name) != value:
        return (
          f'process {index} has {name} {_short(agreed.get(name))}, '
          f'process 0 has {_short(value)}'
        )
    if not 0 <= index < processes:
      return f'process {index} is not one of {processes} processes'
    holder = self._admitted.get(index)
    # In a complete run other threads receive from the links, so that
    # `is_closed` must not be called.
    taken = holder and (self._complete or not holder.is_closed())
    if index == 0 or taken:
      return f'two processes have the index {index}'
    return None


def _refuse(link: Link, reason: str) -> None:
  with contextlib.suppress(OSError):
    link.send({'refused': reason})
  link.close()


def _listen(host: str, port: int) -> socket.socket:
  """Returns a server on the host's own interface, or else on all of them.

  The name may stand for another address on the other hosts: a router's that
  forwards the port, or if this host calls itself 127.0.1.1.
  """
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
  return socket.create_server(('', port))


def _short(value: Any) -> str:
  text = str(value)
  return text if len(text) <= 60 else f'{text[:57]}...'
