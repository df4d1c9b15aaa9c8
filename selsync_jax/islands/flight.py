"""How islands serve and fetch messages, over Arrow Flight and TLS.

Flight is gRPC for arrays, with streams, deadlines, and cancellation.
"""

import atexit
from collections.abc import Callable, Iterable, Mapping, Sequence
import hmac
import os
import threading
import time
from typing import Any

import numpy as np

from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.messages import Key
from selsync_jax.config import BusyError, ConfigError
from selsync_jax.islands.credentials import Credentials, host_name
from selsync_jax.islands.relay import DialBack, HOST

# It would print a line about each stranger, and many would fill a disk.
os.environ.setdefault('GRPC_VERBOSITY', 'NONE')

try:
  import pyarrow as arrow
  from pyarrow import flight
except ModuleNotFoundError as error:
  raise ConfigError(
    f"islands: {error}; pip install 'selsync-jax[islands]'"
  ) from error

CLOSING = 2.0
"""Seconds for which a server that stops waits for its callers."""

ERRORS = (flight.FlightError, arrow.ArrowException, OSError)
"""Errors of a call."""

PIECE = 1 << 22
"""The most bytes of one call, which has a deadline and may be repeated."""

BLOCK = 1 << 20
"""The most bytes of one record batch."""

_COLUMNS = [('block', arrow.large_binary())]

REACHING = 5.0
"""Seconds in which an island must answer to be reached directly."""

PATIENCE = 2.0
"""Seconds for which a call waits for a message that is not ready yet."""

Sends = Callable[[int, int, np.ndarray], None]
"""`sends(to, start, content)`, called before a piece of a message is sent: the
index of the receiver, the offset of the piece, and its bytes."""


class Admission(flight.ServerMiddlewareFactory):
  """Rejects every call that lacks the token, or is meant for another island.

  Private addresses are not unique, so a caller may reach another island.
  """

  def __init__(self, token: str, name: str):
    self._expected = {'token': token.encode(), 'island': name.encode()}

  def start_call(self, info: Any, headers: Mapping[str, Sequence[str]]) -> None:
    """Raises unless the call has the token and this island's host name."""
    del info
    for name, expected in self._expected.items():
      given = [str(value).encode() for value in headers.get(name, ())]
      if not any(hmac.compare_digest(each, expected) for each in given):
        raise flight.FlightUnauthenticatedError(f'wrong {name}')


class Outbox(flight.FlightServerBase):
  """Serves the messages that an island has for others, over TLS.

  Args:
    address: the `host:port` to listen at; port 0 is a free one, see `port`.
    credentials: the run's credentials.
    name: the island's name.
    relay: `host:port` of the coordinator, which may call for others.
    limit: the most bytes per second that are sent; `None` sets no limit.

  Attributes:
    count: called with `sent_bytes`; see `Link.count`.
    called: see `Link.called`.
    changed: held by a call that waits, and notified of messages and of the end;
      nothing else would wake a call when the server shuts down.

  Raises:
    BusyError: if the port cannot be opened.
  """

  def __init__(
    self,
    address: str,
    credentials: Credentials,
    name: str,
    relay: str,
    limit: float | None = None,
  ):
    token, certificate, key = credentials
    self.changed, self.is_closed = threading.Condition(), False
    self.count: Callable[..., None] = lambda **_: None
    self._limit, self._pacing, self._until = limit, threading.Lock(), 0.0
    self._messages: dict[Key, tuple[Sequence[np.ndarray], Sends]] = {}
    host, _, port = address.rpartition(':')
    try:
      super().__init__(
        f'grpc+tls://{address}',
        tls_certificates=[(certificate, key)],
        middleware={'token': Admission(token, host_name(token, name))},
      )
    except ERRORS as error:
      reason, *_ = str(error).splitlines()
      hint = '; another program may use it' * (port != '0')
      raise BusyError(
        f'port {port}: cannot be opened at {host}: {reason}{hint}'
      ) from error
    self._back = DialBack(relay, f'{host}:{self.port}')
    self.called = self._back.called
    atexit.register(self.shutdown)

  def shutdown(self) -> None:
    """Wakes callers that still wait, and stops serving."""
    atexit.unregister(self.shutdown)
    with self.changed:
      self.is_closed = True
      self.changed.notify_all()
    # The base class waits for calls, and a caller may be frozen.
    ending = threading.Thread(target=super().shutdown, daemon=True)
    try:
      ending.start()
      ending.join(CLOSING)
    except RuntimeError:  # Python is exiting, and starts no more threads.
      super().shutdown()
    self._back.shutdown()

  def __exit__(self, *exc: Any) -> None:
    self.shutdown()

  def put(
    self,
    key: Key,
    messages: Sequence[np.ndarray],
    sends: Sends = lambda to, start, content: None,
  ) -> None:
    """Keeps the messages of an exchange, one for each island."""
    each = {id(x): np.asarray(x, order='C') for x in messages}
    with self.changed:
      self._messages[key] = [each[id(x)] for x in messages], sends
      self.changed.notify_all()

  def drop(self, key: Key) -> None:
    """Discards the messages of an exchange, which all islands have received."""
    with self.changed:
      self._messages.pop(key, None)

  def clear(self) -> None:
    """Discards all messages."""
    with self.changed:
      self._messages.clear()

  def list_actions(self, context: Any) -> list[Any]:
    """Answers a caller that wants to know whether this is the island."""
    del context
    return []

  def do_exchange(
    self, context: Any, descriptor: Any, reader: Any, writer: Any
  ) -> None:
    """Answers a call for a piece of a message, which may not be ready yet.

    Unlike a call of `do_get`, the caller can cancel this before any answer.
    """
    del context, reader
    asked = messages.piece(descriptor.command)
    with self.changed:
      self.changed.wait_for(
        lambda: self.is_closed or asked.key in self._messages, PATIENCE
      )
      if asked.key not in self._messages:
        raise flight.FlightTimedOutError('the message is not there yet')
      found, sends = self._messages[asked.key]
    message = found[asked.to]
    about = messages.Array(message.dtype.name, message.shape)
    schema = arrow.schema(_COLUMNS, metadata={'array': messages.encode(about)})
    piece = message.reshape(-1).view(np.uint8)[asked.start :][:PIECE]
    sends(asked.to, asked.start, piece)
    writer.begin(schema)
    for at in range(0, piece.size or 1, BLOCK):
      block = piece[at : at + BLOCK]
      self._wait_for_turn(block.size)
      writer.write_batch(_batch(block, schema))
      self.count(sent_bytes=block.size)

  def _wait_for_turn(self, size: int) -> None:
    """Waits until sending this many more bytes keeps within the limit."""
    if self._limit:
      with self._pacing:
        self._until = max(self._until, time.monotonic()) + size / self._limit
        until = self._until
      time.sleep(max(0.0, until - time.monotonic()))


def _batch(block: np.ndarray, schema: arrow.Schema) -> arrow.RecordBatch:
  """Returns a batch of these bytes, without a copy."""
  offsets = arrow.py_buffer(np.array([0, block.size], np.int64))
  buffers = [None, offsets, arrow.py_buffer(block)]
  column = arrow.Array.from_buffers(arrow.large_binary(), 1, buffers)
  return arrow.record_batch([column], schema=schema)


def content(batch: arrow.RecordBatch) -> arrow.Buffer | None:
  """Inverts `_batch`; `None` if no outbox makes such a batch."""
  if batch.schema.types != [arrow.large_binary()] or batch.num_rows != 1:
    return None
  return batch.column(0)[0].as_buffer()


def client(address: str, certificate: bytes, name: str) -> flight.FlightClient:
  """Returns a client that trusts only this certificate, for this host name.

  It finds a restarted server within a second or two. A call cannot be cancelled
  while it connects, so an attempt is short.
  """
  return flight.FlightClient(
    f'grpc+tls://{address}',
    tls_root_certs=certificate,
    override_hostname=name,
    generic_options=[
      ('grpc.enable_http_proxy', 0),  # Of the environment.
      ('grpc.min_reconnect_backoff_ms', 5000),  # Limit of an attempt.
      ('grpc.max_reconnect_backoff_ms', 1000),
    ],
  )


class Connections:
  """Cache of connections to islands, each made at its first use.

  Args:
    credentials: the run's credentials.
    own: address of this island.
    relay: `host:port` of the coordinator, which calls islands that cannot be
      reached directly; if this one is relayed, all of them.
  """

  def __init__(self, credentials: Credentials, own: str, relay: str):
    self._credentials, self._own, self._relay = credentials, own, relay
    self._clients: dict[tuple[str, str], flight.FlightClient] = {}

  def call(
    self, island: tuple[str, str], wanted: messages.Piece, seconds: float
  ) -> Any:
    """Calls an island; returns a writer to it, and a reader of its answer.

    The call fails after this many seconds.

    Args:
      island: the island's name and address.
      wanted: the part of a message to ask for.
      seconds: the most seconds that it takes.
    """
    found = self._clients.get(island)  # Another thread may remove it.
    if not found:
      found = self._clients[island] = self._connect(*island)
    command = flight.FlightDescriptor.for_command(messages.encode(wanted))
    return found.do_exchange(command, self._options(island[0], seconds))

  def _connect(self, name: str, address: str) -> flight.FlightClient:
    """Connects to an island: directly, if it can be reached so."""
    token, certificate, _ = self._credentials
    asked = host_name(token, name)
    if not (is_relayed(self._own) or is_relayed(address)):
      direct = client(address, certificate, asked)
      try:
        [*direct.list_actions(self._options(name, REACHING))]
        return direct
      except ERRORS:
        direct.close()
    return client(self._relay, certificate, asked)

  def _options(self, name: str, seconds: float) -> flight.FlightCallOptions:
    return call_options(self._credentials.token, name, seconds)

  def close(self, island: tuple[str, str]) -> None:
    """Closes the connection to an island, if there is one."""
    if found := self._clients.pop(island, None):
      found.close()

  def close_others(self, islands: Iterable[tuple[str, str]]) -> None:
    """Closes all connections except to some islands."""
    for island in {*self._clients}.difference(islands):
      self.close(island)


def is_relayed(address: str) -> bool:
  """Returns whether an island is called only through the coordinator."""
  return address.startswith(f'{HOST}:')


def call_options(
  token: str, name: str, seconds: float | None
) -> flight.FlightCallOptions:
  """Returns the options of a call to an island, with its deadline."""
  headers = ('token', token), ('island', host_name(token, name))
  return flight.FlightCallOptions(
    timeout=seconds, headers=[(k.encode(), v.encode()) for k, v in headers]
  )
