"""Further routes between islands, over their other processes.

The first process of an island has all its messages. The other processes may be
on separate hosts, each with its own link to other islands. Pieces of large
messages pass over all of these links: process p of an island fetches them from
process p of another island, and both forward them within their islands.
"""

from collections.abc import Generator
import contextlib
import json
from typing import Any

from selsync_jax.islands.flight import (
  Connections,
  Credentials,
  ERRORS,
  flight,
  Server,
)

MOST = 256
"""The most connections that a relay keeps."""


class Relay(Server):
  """Forwards calls to other relays and outboxes of the run, see `call_over`.

  Args:
    address: see `Server`; its host is how others reach this process.
    credentials: credentials of the run.
    seconds: the longest time that a call may take.

  Attributes:
    address: `host:port` where it serves.
  """

  def __init__(self, address: str, credentials: Credentials, seconds: float):
    self._seconds = seconds
    # Rejoining islands have new addresses.
    self._connections = Connections(credentials, MOST)
    self._answers: set[flight.FlightStreamReader] = set()  # Incomplete ones.
    super().__init__(address, credentials)
    host, _, _ = address.rpartition(':')
    self.address = f'{host}:{self.port}'

  def do_exchange(
    self, context: Any, descriptor: Any, reader: Any, writer: Any
  ) -> None:
    """Forwards a call, and answers with the other server's answer."""
    del context, reader
    address, command = json.loads(descriptor.command)
    try:
      asks, answer = self._connections.call(address, command, self._seconds)
      with asks, self._cancelling(answer):
        writer.begin(answer.schema)
        for chunk in answer:
          writer.write_batch(chunk.data)
    except ERRORS:  # Networks forget idle connections.
      self._connections.forget(address)
      raise

  def shutdown(self) -> None:
    """Stops forwarding and serving."""
    for answer in [*self._answers]:
      answer.cancel()
    super().shutdown()

  @contextlib.contextmanager
  def _cancelling(self, answer: flight.FlightStreamReader) -> Generator[None]:
    """In this context, an answer arrives; afterwards its call is cancelled."""
    self._answers.add(answer)
    try:
      yield
    finally:
      self._answers.discard(answer)
      answer.cancel()  # The caller may have stopped reading.


def call_over(way: list[str], command: str) -> tuple[str, str]:
  """Returns the address to call, and the command for relays to forward.

  Args:
    way: addresses of the relays, and then of the server.
    command: request to the server.

  >>> call_over(['oahu:1'], '[]')
  ('oahu:1', '[]')
  >>> call_over(['maui:2', 'oahu:1'], '[]')
  ('maui:2', '["oahu:1", "[]"]')
  """
  first, *rest = way
  if rest:
    command = json.dumps(call_over(rest, command))
  return first, command
