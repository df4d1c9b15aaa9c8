"""What it takes to reach a meeting point, and to know that it is the one."""

from collections.abc import Generator
import contextlib
import dataclasses
import hashlib
import socket
import ssl
import time

from selsync_jax.config import RunError
from selsync_jax.islands.flight import client, ERRORS, flight


@dataclasses.dataclass(frozen=True)
class Invitation:
  """What an island must know to join a run.

  Attributes:
    address: `host:port` of the meeting point.
    token: the secret of the run.
    fingerprint: the SHA-256 of the run's certificate, in hexadecimal.
  """

  address: str
  token: str
  fingerprint: str

  def __str__(self) -> str:
    return f'{self.address}/{self.token}/{self.fingerprint}'

  @classmethod
  def parse(cls, text: str) -> 'Invitation':
    """Reads what `str` has written; a `RunError` if it is something else."""
    parts = text.strip().split('/')
    host, _, port = parts[0].rpartition(':')
    is_port = port.isdecimal() and 0 < int(port) < 2**16
    if len(parts) != 3 or not host or not is_port:
      raise RunError(
        f'{text!r} is not an invitation: HOST:PORT/TOKEN/FINGERPRINT, as the '
        'meeting point prints it'
      )
    return cls(*parts)


@contextlib.contextmanager
def reach(
  invitation: Invitation, timeout: float
) -> Generator[tuple[str, bytes, flight.FlightClient]]:
  """Connects to a meeting point, which need not serve yet, for some calls.

  Args:
    invitation: the meeting point's invitation.
    timeout: seconds until it must answer.

  Yields:
    This host's own address there, the certificate of the run, and a client.

  Raises:
    RunError: if the point is not that of the invitation, or a call in this
      context fails.
  """
  try:
    host, certificate = _certificate(invitation, timeout)
    yield host, certificate, client(invitation.address, certificate)
  except flight.FlightUnauthenticatedError as error:
    raise RunError(
      f'the meeting point {invitation.address} rejects the token of '
      'the invitation'
    ) from error
  except ERRORS as error:
    raise RunError(
      f'the meeting point {invitation.address} cannot be reached'
    ) from error


def _certificate(invitation: Invitation, timeout: float) -> tuple[str, bytes]:
  """Returns this host's own address there, and the point's certificate."""
  host, _, port = invitation.address.rpartition(':')
  context = ssl.create_default_context()
  context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
  deadline = time.monotonic() + timeout
  while True:
    try:
      plain = socket.create_connection((host, int(port)), timeout)
      break
    except OSError:
      if time.monotonic() >= deadline:
        raise
      time.sleep(0.2)
  with plain, context.wrap_socket(plain) as connection:
    found = connection.getpeercert(binary_form=True) or b''
    certificate = ssl.DER_cert_to_PEM_cert(found).encode()
    if fingerprint(certificate) != invitation.fingerprint:
      raise RunError(
        f'the meeting point {invitation.address} is not that of the '
        'invitation: its certificate is another one'
      )
    return connection.getsockname()[0], certificate


def fingerprint(certificate: bytes) -> str:
  """Returns the SHA-256 of a certificate in PEM, in hexadecimal."""
  found = ssl.PEM_cert_to_DER_cert(certificate.decode())
  return hashlib.sha256(found).hexdigest()
