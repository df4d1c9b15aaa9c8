"""Further ways between islands, over their other processes.

The first process of an island has all its messages. Its other processes may be
on hosts of their own, each with its own link to other islands. Pieces of large
messages pass over all of these links: process p of an island fetches them from
process p of another one, and both pass them on within their islands.
"""

import contextlib
import json
from typing import Any

from selsync_jax.islands.flight import call_options
from selsync_jax.islands.flight import client
from selsync_jax.islands.flight import Credentials
from selsync_jax.islands.flight import flight
from selsync_jax.islands.flight import Server


class Relay(Server):
  """Passes calls on to other relays and outboxes of the run, see `call_over`.

  Args:
    host: the address by which others reach this host.
    credentials: the run's credentials.
    seconds: the longest time that a call may take.

  Attributes:
    address: `host:port`, where it serves.
  """

  def __init__(self, host: str, credentials: Credentials, seconds: float):
    self._credentials, self._seconds = credentials, seconds
    self._clients: dict[str, flight.FlightClient] = {}  # By address.
    super().__init__(f'{host}:0', credentials)
    self.address = f'{host}:{self.port}'

  def do_exchange(
    self, context: Any, descriptor: Any, reader: Any, writer: Any
  ) -> None:
    """Answers a call with what another server answers."""
    del context, reader
    address, command = json.loads(descriptor.command)
    options = call_options(self._credentials.token, self._seconds)
    wanted = flight.FlightDescriptor.for_command(command)
    asks, answer = self._client(address).do_exchange(wanted, options)
    with asks, contextlib.ExitStack() as stack:
      stack.callback(answer.cancel)  # Whoever has called may read no further.
      writer.begin(answer.schema)
      for chunk in answer:
        writer.write_batch(chunk.data)

  def _client(self, address: str) -> flight.FlightClient:
    if address not in self._clients:
      certificate = self._credentials.certificate
      self._clients[address] = client(address, certificate)
    return self._clients[address]


def call_over(way: list[str], command: str) -> tuple[str, str]:
  """Returns the address to call, and the command, so that relays pass it on.

  Args:
    way: the addresses of the relays, and then that of the server.
    command: for the server.

  >>> call_over(['oahu:1'], '[]')
  ('oahu:1', '[]')
  >>> call_over(['maui:2', 'oahu:1'], '[]')
  ('maui:2', '["oahu:1", "[]"]')
  """
  first, *rest = way
  if rest:
    command = json.dumps(call_over(rest, command))
  return first, command
