"""Messages between islands over Arrow Flight.

Flight is gRPC for arrays: it has deadlines, and TLS. Each island serves the
messages that it has for others, and fetches what they have for it, from one
island after the other: parallel flows use a slow link less fully.
"""

import atexit
from collections.abc import Iterable, Iterator, Mapping, Sequence
import datetime
import hmac
import json
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from selsync_jax.config import ConfigError
from selsync_jax.config import RunError
from selsync_jax.islands.peers import Peers

try:
  from cryptography import x509
  from cryptography.hazmat.primitives import hashes
  from cryptography.hazmat.primitives import serialization
  from cryptography.hazmat.primitives.asymmetric import ec
  import pyarrow as pa
  from pyarrow import flight
except ModuleNotFoundError as error:
  raise ConfigError(
    f"islands: {error}; pip install 'selsync-jax[islands]'"
  ) from error

BLOCK = 1 << 21
"""The bytes of a message in one record batch."""

NAME = 'selsync'
"""The host name in the certificate; the real one is not checked."""


class Credentials(NamedTuple):
  """The secrets that the islands of a run share.

  Attributes:
    token: which every call must have.
    certificate: with which every server of the run identifies itself, in PEM.
    key: the certificate's private key, in PEM.
  """

  token: str
  certificate: bytes
  key: bytes


def create_credentials(token: str) -> Credentials:
  """Makes the credentials of a run, with a new certificate."""
  key = ec.generate_private_key(ec.SECP256R1())
  name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
  now = datetime.datetime.now(datetime.UTC)
  certificate = (
    x509.CertificateBuilder(name, name, key.public_key())
    .serial_number(x509.random_serial_number())
    # Clocks may differ by hours.
    .not_valid_before(now - datetime.timedelta(days=2))
    .not_valid_after(now + datetime.timedelta(days=3650))
    .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), False)
    .sign(key, hashes.SHA256())
  )
  return Credentials(
    token,
    certificate.public_bytes(serialization.Encoding.PEM),
    key.private_bytes(
      serialization.Encoding.PEM,
      serialization.PrivateFormat.PKCS8,
      serialization.NoEncryption(),
    ),
  )


class Admission(flight.ServerMiddlewareFactory):
  """Turns away every call that does not have the token."""

  def __init__(self, token: str):
    self._expected = token.encode()

  def start_call(self, info: Any, headers: Mapping[str, Sequence[str]]) -> None:
    """Raises unless the call has the token."""
    del info
    given = [str(value).encode() for value in headers.get('token', ())]
    if not any(hmac.compare_digest(each, self._expected) for each in given):
      raise flight.FlightUnauthenticatedError('wrong token')


class Server(flight.FlightServerBase):
  """Serves callers that have the token, over TLS.

  A call may wait: it holds `changed` and looks at `is_closed`, as nothing else
  would wake it when the server shuts down.

  Args:
    address: the `host:port` to listen at; 0 is a free port, see `port`.
    credentials: the run's credentials.
  """

  def __init__(self, address: str, credentials: Credentials):
    token, certificate, key = credentials
    self.changed, self.is_closed = threading.Condition(), False
    atexit.register(self.shutdown)
    super().__init__(
      f'grpc+tls://{address}',
      tls_certificates=[(certificate, key)],
      middleware={'token': Admission(token)},
    )

  def shutdown(self) -> None:
    """Wakes callers that still wait, and stops serving."""
    atexit.unregister(self.shutdown)
    with self.changed:
      self.is_closed = True
      self.changed.notify_all()
    super().shutdown()

  def __exit__(self, *exc: Any) -> None:
    """Stops serving."""
    self.shutdown()


class Outbox(Server):
  """Serves the messages that an island has for others.

  Args:
    address: see `Server`.
    credentials: see `Server`.
    timeout: seconds that a caller may wait for a message.
    pace: the most bytes per second of one message; `None` is no limit.
  """

  def __init__(
    self,
    address: str,
    credentials: Credentials,
    timeout: float = 60.0,
    pace: float | None = None,
  ):
    self._timeout, self._pace = timeout, pace
    self._messages: dict[bytes, np.ndarray] = {}
    super().__init__(address, credentials)

  def put(self, ticket: bytes, message: np.ndarray) -> None:
    """Keeps a message until it is fetched."""
    with self.changed:
      self._messages[ticket] = message
      self.changed.notify_all()

  def do_get(self, context: Any, ticket: flight.Ticket) -> Any:
    """Answers a call for a message, which may not be there yet."""
    del context
    key = ticket.ticket
    with self.changed:
      self.changed.wait_for(
        lambda: self.is_closed or key in self._messages, self._timeout
      )
      if key not in self._messages:
        raise flight.FlightTimedOutError('the message did not come in time')
      message = np.asarray(self._messages.pop(key), order='C')
      self.changed.notify_all()
    about = {
      'dtype': message.dtype.name,
      'shape': json.dumps(message.shape),
    }
    schema = pa.schema([('block', pa.large_binary())], metadata=about)
    blocks = _paced(_blocks(message), self._pace)
    batches = (_batch(block, schema) for block in blocks)
    return flight.RecordBatchStream(
      pa.RecordBatchReader.from_batches(schema, batches)
    )

  def drain(self) -> None:
    """Waits until all messages are fetched, at most `timeout` seconds."""
    with self.changed:
      self.changed.wait_for(lambda: not self._messages, self._timeout)


def _blocks(message: np.ndarray) -> Iterator[np.ndarray]:
  """Yields the bytes of a message in pieces, none of which is a copy."""
  whole = message.reshape(-1).view(np.uint8)
  for start in range(0, whole.size, BLOCK):
    yield whole[start : start + BLOCK]


def _paced(
  blocks: Iterable[np.ndarray], pace: float | None
) -> Iterator[np.ndarray]:
  """Yields blocks as slowly as if a wire had this many bytes a second."""
  until = time.monotonic()
  for block in blocks:
    if pace:
      until += block.size / pace
      time.sleep(max(0.0, until - time.monotonic()))
    yield block


def _batch(block: np.ndarray, schema: pa.Schema) -> pa.RecordBatch:
  offsets = pa.py_buffer(np.array([0, block.size], np.int64))
  buffers = [None, offsets, pa.py_buffer(block)]
  column = pa.Array.from_buffers(pa.large_binary(), 1, buffers)
  return pa.record_batch([column], schema=schema)


class FlightPeers(Peers):
  """Islands that serve and fetch messages.

  Args:
    name: this island's name.
    addresses: every island's `host:port` by name, in the order of the indices.
    outbox: this island's outbox.
    credentials: the run's credentials.
    timeout: seconds until an island that does not answer is an error.
    channel: the channel's name; exchanges of different ones are independent.
  """

  def __init__(
    self,
    name: str,
    addresses: Mapping[str, str],
    outbox: Outbox,
    credentials: Credentials,
    timeout: float = 60.0,
    channel: str = '',
  ):
    self.names = tuple(addresses)
    self.index, self.size = self.names.index(name), len(addresses)
    self._outbox, self._timeout = outbox, timeout
    self._addresses, self._credentials = addresses, credentials
    certificate = credentials.certificate
    self._clients = [client(each, certificate) for each in addresses.values()]
    self._channel, self._count = channel, 0

  def channel(self, name: str) -> Peers:
    """Returns another channel, over connections of its own."""
    own, addresses = self.names[self.index], self._addresses
    rest = self._outbox, self._credentials, self._timeout, name
    return FlightPeers(own, addresses, *rest)

  def exchange(self, messages: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Serves the messages, and fetches those of one island after the other."""
    self._count += 1
    for to, message in enumerate(messages):
      if to != self.index:
        self._outbox.put(self._ticket(self.index, to), message)
    received = [*messages]
    for distance in range(1, self.size):
      sender = (self.index + distance) % self.size
      received[sender] = self._fetch(sender)
    return received

  def close(self) -> None:
    """Leaves, when all have fetched what this island has sent them."""
    self._outbox.drain()
    self._outbox.shutdown()

  def _ticket(self, sender: int, to: int) -> bytes:
    return f'{self._channel} {self._count} {sender} {to}'.encode()

  def _fetch(self, sender: int) -> np.ndarray:
    ticket = flight.Ticket(self._ticket(sender, self.index))
    options = call_options(self._credentials.token, self._timeout)
    try:
      reader = self._clients[sender].do_get(ticket, options)
      about = reader.schema.metadata
      blocks = [chunk.data.column(0)[0].as_buffer() for chunk in reader]
    except flight.FlightTimedOutError as error:
      raise RunError(
        f'island {self.names[sender]} has not answered for {self._timeout:g} s'
      ) from error
    except (flight.FlightError, pa.ArrowException) as error:
      raise RunError(
        f'island {self.names[sender]} cannot be reached'
      ) from error
    whole = np.frombuffer(b''.join(blocks), np.dtype(about[b'dtype'].decode()))
    return whole.reshape(json.loads(about[b'shape']))


def client(address: str, certificate: bytes) -> flight.FlightClient:
  """Returns a client that trusts this certificate alone."""
  return flight.FlightClient(
    f'grpc+tls://{address}', tls_root_certs=certificate, override_hostname=NAME
  )


def call_options(token: str, seconds: float | None) -> flight.FlightCallOptions:
  """Returns the options of a call, with its deadline."""
  return flight.FlightCallOptions(
    timeout=seconds, headers=[(b'token', token.encode())]
  )
