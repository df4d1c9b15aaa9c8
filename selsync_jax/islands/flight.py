"""Servers and clients of Arrow Flight that trust only each other, over TLS.

Flight is gRPC for arrays, with streams, deadlines, and cancellation.
"""

import atexit
from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import datetime
import hmac
import itertools
import json
import os
import pathlib
import secrets
import threading
from typing import Any, NamedTuple

from selsync_jax.config import BusyError, ConfigError
from selsync_jax.islands.protocol import messages

# It would print a line about each stranger, and many would fill a disk.
os.environ.setdefault('GRPC_VERBOSITY', 'NONE')

try:
  from cryptography import x509
  from cryptography.hazmat.primitives import hashes, serialization
  from cryptography.hazmat.primitives.asymmetric import ec
  import pyarrow as arrow
  from pyarrow import flight
except ModuleNotFoundError as error:
  raise ConfigError(
    f"islands: {error}; pip install 'selsync-jax[islands]'"
  ) from error

NAME = 'selsync'
"""The host name in the certificate; the real host name is not checked."""

CLOSING = 2.0
"""Seconds for which a server that stops waits for its callers."""

ERRORS = (flight.FlightError, arrow.ArrowException, OSError)
"""Errors of a call."""


class Credentials(NamedTuple):
  """The secrets that the islands of a run share.

  Attributes:
    token: the bearer token required in every call.
    certificate: TLS certificate presented by every server of the run, in PEM.
    key: the certificate's private key, in PEM.
  """

  token: str
  certificate: bytes
  key: bytes


def create_credentials(token: str = '') -> Credentials:
  """Makes new credentials for a run, both certificate and token.

  Args:
    token: a fixed token, for tests; empty makes a new one.
  """
  key = ec.generate_private_key(ec.SECP256R1())
  name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
  token = token or secrets.token_urlsafe(16)
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


def kept_credentials(path: pathlib.Path) -> Credentials:
  """Returns the credentials in a file; makes the file if it does not exist.

  Raises:
    ConfigError: if the file cannot be read or made, or has other content.
  """
  try:
    with contextlib.suppress(FileNotFoundError):
      token, certificate, key = json.loads(path.read_text())
      kept = Credentials(token, certificate.encode(), key.encode())
      private = serialization.load_pem_private_key(kept.key, None)
      known = x509.load_pem_x509_certificate(kept.certificate).public_key()
      if known != private.public_key():
        raise ValueError('the key belongs to another certificate')
      if path.stat().st_mode & 0o077:
        raise ConfigError(
          f'--keep={path}: other users can read this file; make it private '
          f'(chmod 600 {path}) or delete it for new secrets'
        )
      return kept
    token, certificate, key = made = create_credentials()
    # Other users must never be able to read the file.
    with open(path, 'x', opener=_open_private) as file:
      file.write(json.dumps([token, certificate.decode(), key.decode()]))
  except OSError as error:
    raise ConfigError(f'--keep={path}: {error.strerror}') from error
  except ConfigError:
    raise
  except (ValueError, AttributeError, TypeError) as error:
    raise ConfigError(
      f'--keep={path}: holds no secrets of a coordinator; delete the file for '
      'new ones'
    ) from error
  return made


def _open_private(path: str, flags: int) -> int:
  return os.open(path, flags, 0o600)


class Admission(flight.ServerMiddlewareFactory):
  """Rejects every call that does not have the token.

  Args:
    token: the run's token.
    remark: takes a line about the first rejected call.
  """

  def __init__(self, token: str, remark: Callable[[str], None]):
    self._expected, self._remark = token.encode(), remark
    self._strangers = itertools.count()

  def start_call(self, info: Any, headers: Mapping[str, Sequence[str]]) -> None:
    """Raises unless the call has the token."""
    del info
    given = [str(value).encode() for value in headers.get('token', ())]
    if not any(hmac.compare_digest(each, self._expected) for each in given):
      if not next(self._strangers):
        self._remark('a caller without the token of this run was turned away')
      raise flight.FlightUnauthenticatedError('wrong token')


class Server(flight.FlightServerBase):
  """Serves callers that have the token, over TLS.

  A call may wait: it holds `changed` and looks at `is_closed`, because nothing
  else would wake it when the server shuts down.

  Args:
    address: the `host:port` to listen at; 0 is a free port, see `port`.
    credentials: the run's credentials.
    remark: see `Admission`.

  Raises:
    BusyError: if the port cannot be opened.
  """

  def __init__(
    self,
    address: str,
    credentials: Credentials,
    remark: Callable[[str], None] = lambda line: None,
  ):
    token, certificate, key = credentials
    self.changed, self.is_closed = threading.Condition(), False
    try:
      super().__init__(
        f'grpc+tls://{address}',
        tls_certificates=[(certificate, key)],
        middleware={'token': Admission(token, remark)},
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
    """Stops serving."""
    self.shutdown()


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

    Args:
      address: `host:port` of the server.
      wanted: the request.
      seconds: until the call fails.
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
