"""TCP connections between process 0 and every other process of a run.

JAX's own coordination service compares no configs. If a process dies or two
have one index, it aborts the others with a C++ stack trace, in general only
after its heartbeat timeout. A process that fails cannot tell the others, which
wait for it in a collective.

Here process 0 checks, before JAX starts, that all processes match, and refuses
a mismatch with one line. The connections then stay open, so a process that dies
is noticed at once, and a failing process reports its failure. Each end also
sends a sign of life every second; a process that is silent for too long counts
as lost.

The processes also agree on the step after which all stop. JAX has a service for
that, but a thread that asks it holds Python's lock until process 0 answers: if
process 0 has died, no other thread could report its end or end this process.
"""

import atexit
import contextlib
import functools
import os
import socket
import threading
import time
from typing import Any

from selsync_jax.cluster import signals
from selsync_jax.cluster.agreement import Agreement, Message, Tally
from selsync_jax.cluster.link import Link, StrangerError
from selsync_jax.cluster.reception import ClusterError, Reception

# Ways in which a process can end.
LEFT, FAILED, GONE = 'has left', 'has failed', 'is gone'
STOPPED, SILENT = 'was stopped by a signal', 'does not answer'
# The seconds after another process's failure in which a process may report
# its own, before it is ended.
GRACE = 5.0
BEAT = 0.25  # The seconds from one sign of life to the next.
LEAST = 1.0  # The shortest timeout in seconds; three signs of life may be late.


def _news(process: int, fate: str, code: int = 1) -> dict[str, Any]:
  """Returns the message that a process has ended, with its exit code."""
  return {'process': process, 'fate': fate, 'code': code}


class Channel:
  """The connections of one process. The constructor waits for all processes.

  Process 0 listens at the address, `host:port`, and sends its `offer` to all.
  The values in `agreed` must be equal on all processes; `processes` is the
  number of processes. After `timeout` seconds, a missing process raises a
  `ClusterError`, and an unresponsive one counts as gone. Strangers do not have
  the token.

  Attributes:
    offer: process 0's offer.
    agreement: this process's part in the step after which all stop.
  """

  def __init__(
    self,
    address: str,
    process: int,
    agreed: dict[str, Any],
    offer: Any,
    timeout: float,
    token: str = '',
  ):
    self.offer = offer
    self._process, self._timeout = process, timeout
    self._leaving = threading.Event()
    self.agreement, self._tally = Agreement(self._send), None
    self._reception = None
    if process == 0:
      self._tally = Tally(range(agreed['processes']), self._tell_all)
      self.agreement = Agreement(functools.partial(self._tally.hear, 0))
      self._reception = Reception(address, agreed, token)
      self._peers = self._reception.wait(timeout)
      self._send({'welcome': offer})
    else:
      hello = {'process': process, 'agreed': agreed}
      link, self.offer = _call(address, hello, timeout, token)
      self._peers = {0: link}
    self._watchers = [
      threading.Thread(target=self._watch, args=peer, daemon=True)
      for peer in self._peers.items()
    ]
    for watcher in self._watchers:
      watcher.start()
    threading.Thread(target=self._beat, daemon=True).start()
    # The other processes then end with the same exit code.
    signals.before_stop(self._stop)

  def _tell_all(self, message: Message) -> None:
    """Sends a message of the tally to all processes, including this one."""
    self._send(message)
    self.agreement.hear(message)

  def leave(self) -> None:
    """Reports success: this process may now end without ending the others.

    Until `close`, it waits for them, and ends if one of them fails.
    """
    self._report(LEFT)

  def close(self) -> None:
    """Lets this process continue alone, after all others have left."""
    self._leaving.set()

  def fail(self, code: int) -> None:
    """Reports failure: the other processes fail as well, or are ended.

    This process exits with the code before JAX's own exit handler, which would
    wait for the others.
    """
    self._leaving.set()
    self._report(FAILED)
    if self._process == 0:  # JAX aborts processes that outlive process 0.
      for watcher in self._watchers:
        watcher.join(2 * GRACE)
    atexit.register(os._exit, code)

  def _stop(self, code: int) -> None:
    self._leaving.set()
    self._report(STOPPED, code)

  def _report(self, fate: str, code: int = 1) -> None:
    if self._reception:
      self._reception.close()
    self._send(_news(self._process, fate, code))

  def _send(self, message: Message, omitted: int | None = None) -> None:
    """Sends a message to all peers except one; lost peers are ignored."""
    for index, link in self._peers.items():
      if index != omitted:
        with contextlib.suppress(OSError):
          link.send(message)

  def _beat(self) -> None:
    """Sends signs of life until this process ends or continues alone."""
    while not self._leaving.wait(BEAT):
      self._send({})

  def _watch(self, index: int, link: Link) -> None:
    """Waits until the peer ends. Unless it has left, ends this process too."""
    news = self._wait(index, link)
    if news['fate'] == LEFT:  # Process 0 still reports others.
      news = self._wait(index, link)
      if news['process'] == index and news['fate'] in (GONE, SILENT):
        return
    if news['fate'] == FAILED and news['process'] == index:
      self._leaving.wait(GRACE)
    if not self._leaving.is_set():
      self._send(news, news['process'])
      signals.end(
        news['code'],
        f'process {self._process}: process {news["process"]} {news["fate"]}; '
        'restart all processes to resume from the last checkpoint',
      )
    with contextlib.suppress(OSError):  # Until the peer closes the connection.
      link.receive(time.monotonic() + self._timeout)

  def _wait(self, index: int, link: Link) -> dict[str, Any]:
    """Waits until the peer reports an end, its own or another process's."""
    # Counts waits instead of time, because this process may have been frozen.
    silent = 0.0
    while silent < self._timeout:
      try:
        news = link.receive(time.monotonic() + BEAT)
      except TimeoutError:
        silent += BEAT
        continue
      except OSError:
        return _news(index, GONE)
      if news.get('fate') in (LEFT, FAILED, GONE, STOPPED, SILENT):
        return _news(index, GONE) | news
      if self._tally:
        self._tally.hear(index, news)
      else:
        self.agreement.hear(news)
      silent = 0.0
    return _news(index, SILENT)


def _call(
  address: str, hello: dict[str, Any], timeout: float, token: str
) -> tuple[Link, Any]:
  """Connects to process 0, and returns the link and process 0's offer."""
  deadline = time.monotonic() + timeout
  host, _, port = address.rpartition(':')
  while True:
    left = max(0.01, deadline - time.monotonic())
    try:
      with contextlib.ExitStack() as stack:
        peer = stack.enter_context(
          socket.create_connection((host.strip('[]'), int(port)), left)
        )
        link = Link(peer, token, listens=False, deadline=deadline)
        link.send(hello)
        # Process 0 sends the reason for a refusal just after the deadline.
        reply = link.receive(deadline + 5)
        if 'welcome' in reply:
          stack.pop_all()
          return link, reply['welcome']
      raise ClusterError(str(reply.get('refused', 'process 0 has no answer')))
    except StrangerError as error:
      raise ClusterError(f'process 0 at {address}: {error}') from error
    except OSError as error:
      if time.monotonic() >= deadline:
        raise ClusterError(
          f'process 0 could not be reached at {address} within '
          f'{timeout:g} s: {error}'
        ) from error
      time.sleep(0.1)
