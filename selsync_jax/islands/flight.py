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
from selsync_jax.islands.credentials import Credentials, NAME

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

PATIENCE = 2.0
"""Seconds for which a call waits for a message that is not ready yet."""


class Admission(flight.ServerMiddlewareFactory):
  """Rejects every call that does not have the token."""

  def __init__(self, token: str):
    self._expected = token.encode()

  def start_call(self, info: Any, headers: Mapping[str, Sequence[str]]) -> None:
    """Raises unless the call has the token."""
    del info
    given = [str(value).encode() for value in headers.get('token', ())]
    if not any(hmac.compare_digest(each, self._expected) for each in given):
      raise flight.FlightUnauthenticatedError('wrong token')


class Outbox(flight.FlightServerBase):
  """Serves the messages that an island has for others, over TLS.

  Args:
    address: the `host:port` to listen at; port 0 is a free one, see `port`.
    credentials: the run's credentials.
    limit: the most bytes per second that are sent; `None` sets no limit.

  Attributes:
    count: called with `sent_bytes`; see `Link.count`.
    changed: held by a call that waits, and notified of messages and of the end;
      nothing else would wake a call when the server shuts down.

  Raises:
    BusyError: if the port cannot be opened.
  """

  def __init__(
    self,
    address: str,
    credentials: Credentials,
    limit: float | None = None,
  ):
    token, certificate, key = credentials
    self.changed, self.is_closed = threading.Condition(), False
    self.count: Callable[..., None] = lambda **_: None
    self._limit, self._pacing, self._until = limit, threading.Lock(), 0.0
    self._messages: dict[Key, Sequence[np.ndarray]] = {}
    try:
      super().__init__(
        f'grpc+tls://{address}',
        tls_certificates=[(certificate, key)],
        middleware={'token': Admission(token)},
      )
    except ERRORS as error:
      host, _, port = address.rpartition(':')
      reason, *_ = str(error).splitlines()
      hint = '; another program may use it' * (port != '0')
      raise BusyError(
        f'port {port}: cannot be opened at {host}: {reason}{hint}'
      ) from error
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

  def __exit__(self, *exc: Any) -> None:
    self.shutdown()

  def put(self, key: Key, messages: Sequence[np.ndarray]) -> None:
    """Keeps the messages of an exchange, one for each island."""
    each = {id(x): np.asarray(x, order='C') for x in messages}
    with self.changed:
      self._messages[key] = [each[id(x)] for x in messages]
      self.changed.notify_all()

  def drop(self, key: Key) -> None:
    """Discards the messages of an exchange, which all islands have received."""
    with self.changed:
      self._messages.pop(key, None)

  def clear(self) -> None:
    """Discards all messages."""
    with self.changed:
      self._messages.clear()

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
      message = self._messages[asked.key][asked.to]
    about = messages.Array(message.dtype.name, message.shape)
    schema = arrow.schema(_COLUMNS, metadata={'array': messages.encode(about)})
    piece = message.reshape(-1).view(np.uint8)[asked.start :][:PIECE]
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


def client(address: str, certificate: bytes) -> flight.FlightClient:
  """Returns a client that trusts only this certificate.

  It finds a restarted server within a second or two. A call cannot be cancelled
  while it connects, so an attempt is short.
  """
  return flight.FlightClient(
    f'grpc+tls://{address}',
    tls_root_certs=certificate,
    override_hostname=NAME,
    generic_options=[
      ('grpc.enable_http_proxy', 0),  # Of the environment.
      ('grpc.min_reconnect_backoff_ms', 5000),  # Limit of an attempt.
      ('grpc.max_reconnect_backoff_ms', 1000),
    ],
  )


class Connections:
  """Cache of connections to servers of the run, each made at its first use."""

  def __init__(self, credentials: Credentials):
    self._credentials = credentials
    self._clients: dict[str, flight.FlightClient] = {}  # By address.

  def call(self, address: str, wanted: messages.Piece, seconds: float) -> Any:
    """Calls a server; returns a writer to it, and a reader of its answer.

    The call fails after this many seconds.
    """
    found = self._clients.get(address)  # Another thread may remove it.
    if not found:
      found = client(address, self._credentials.certificate)
      self._clients[address] = found
    command = flight.FlightDescriptor.for_command(messages.encode(wanted))
    options = call_options(self._credentials.token, seconds)
    return found.do_exchange(command, options)

  def close(self, address: str) -> None:
    """Closes the connection to an address, if there is one."""
    if found := self._clients.pop(address, None):
      found.close()

  def close_others(self, addresses: Iterable[str]) -> None:
    """Closes all connections except to some addresses."""
    for address in {*self._clients}.difference(addresses):
      self.close(address)


def call_options(token: str, seconds: float | None) -> flight.FlightCallOptions:
  """Returns the options of a call, with its deadline."""
  return flight.FlightCallOptions(
    timeout=seconds, headers=[(b'token', token.encode())]
  )
