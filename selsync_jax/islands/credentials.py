"""The secrets of a run, the invitation to get them, and TLS with them."""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import hmac
import json
import os
import pathlib
import secrets
import socket
import ssl
import time
from typing import Any, NamedTuple

from selsync_jax.cluster.connection import dial, frame, Frames, is_host_port
from selsync_jax.cluster.protocol import messages
from selsync_jax.config import ConfigError, RunError

try:
  from cryptography import x509
  from cryptography.hazmat.primitives import hashes, serialization
  from cryptography.hazmat.primitives.asymmetric import ec
except ModuleNotFoundError as error:
  raise ConfigError(
    f"islands: {error}; pip install 'selsync-jax[islands]'"
  ) from error

SUFFIX = '.island.selsync'
"""The end of the islands' host names; real host names are not checked."""


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


_EACH = x509.DNSName(f'*{SUFFIX}')


def host_name(token: str, island: str) -> str:
  """Returns the host name of an island; strangers cannot guess it."""
  digest = hmac.digest(token.encode(), island.encode(), 'sha256')
  return digest.hex()[:32] + SUFFIX


def create_credentials() -> Credentials:
  """Makes new credentials for a run, both certificate and token."""
  key = ec.generate_private_key(ec.SECP256R1())
  name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, 'selsync')])
  now = datetime.datetime.now(datetime.UTC)
  certificate = (
    x509.CertificateBuilder(name, name, key.public_key())
    .serial_number(x509.random_serial_number())
    # Clocks may differ by hours.
    .not_valid_before(now - datetime.timedelta(days=2))
    .not_valid_after(now + datetime.timedelta(days=3650))
    .add_extension(x509.SubjectAlternativeName([_EACH]), False)
    .sign(key, hashes.SHA256())
  )
  return Credentials(
    secrets.token_urlsafe(16),
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
      known = x509.load_pem_x509_certificate(kept.certificate)
      if known.public_key() != private.public_key():
        raise ValueError('the key belongs to another certificate')
      if SUFFIX.encode() not in known.public_bytes(serialization.Encoding.DER):
        raise ValueError('an earlier version has made the certificate')
      if path.stat().st_mode & 0o077:
        raise ConfigError(
          f'--keep={path}: other users can read this file; make it private '
          f'(chmod 600 {path}) or delete it for new secrets'
        )
      return kept
    token, certificate, key = made = create_credentials()
    # Other users must never be able to read the file.
    with open(path, 'x', opener=functools.partial(os.open, mode=0o600)) as file:
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


@dataclasses.dataclass(frozen=True)
class Invitation:
  """Everything that an island must know to join a run.

  Attributes:
    address: `host:port` of the coordinator.
    token: secret of the run.
    fingerprint: the SHA-256 of the run's certificate, in hexadecimal.
  """

  address: str
  token: str
  fingerprint: str

  def __str__(self) -> str:
    return f'{self.address}/{self.token}/{self.fingerprint}'

  @classmethod
  def parse(cls, text: str) -> 'Invitation':
    """Parses the output of `str`; raises `RunError` for any other text."""
    parts = text.strip().split('/')
    if len(parts) != 3 or not is_host_port(parts[0]):
      raise RunError(
        f'{text!r} is not an invitation: HOST:PORT/TOKEN/FINGERPRINT, as the '
        'coordinator prints it'
      )
    return cls(*parts)


def fingerprint(certificate: bytes) -> str:
  """Returns the SHA-256 of a certificate in PEM, in hexadecimal."""
  found = ssl.PEM_cert_to_DER_cert(certificate.decode())
  return hashlib.sha256(found).hexdigest()


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
  """Returns the TLS context of a server with this certificate and key.

  Python loads a certificate and a key from files only. They are pipes here, so
  nothing is written to a disk.

  Raises:
    OSError: if the arguments are not a valid certificate and its key.
  """
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  ends = []
  for content in (certificate, key):
    source, sink = os.pipe()
    os.write(sink, content)
    os.close(sink)
    ends.append(source)
  try:
    context.load_cert_chain(*(f'/dev/fd/{source}' for source in ends))
  finally:
    for source in ends:
      os.close(source)
  return context


def client_context() -> ssl.SSLContext:
  """Returns the TLS context of a client that compares fingerprints itself."""
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
  return context


class InvitedFrames(Frames):
  """The end of an island: checks the certificate, then shows the token."""

  def __init__(self, invitation: Invitation, *args: Any):
    super().__init__(*args)
    self._invitation = invitation

  def connection_made(self, transport: Any) -> None:
    """Sends the token, if the other end is the coordinator."""
    self.transport = transport
    found = transport.get_extra_info('ssl_object')
    if not _is_known(self._invitation, found.getpeercert(binary_form=True)):
      self.stranger = _OTHER
      transport.abort()
      return
    self.send(messages.encode(messages.Hello(self._invitation.token)))
    self._opened(self)


_OTHER = 'has another certificate than the invitation says'


def _is_known(invitation: Invitation, found: bytes | None) -> bool:
  """Returns whether a certificate, in DER, is the coordinator's."""
  return hashlib.sha256(found or b'').hexdigest() == invitation.fingerprint


def ask(
  invitation: Invitation, what: str, timeout: float
) -> tuple[bytes, str, bytes]:
  """Asks the coordinator for the key or the status, perhaps before it serves.

  Args:
    invitation: the coordinator's invitation.
    what: see `messages.Ask`.
    timeout: seconds until it must answer.

  Returns:
    The answer, the address of this host there, and the certificate in PEM.

  Raises:
    RunError: if the coordinator is unreachable or has another certificate.
  """
  deadline, where = time.monotonic() + timeout, invitation.address
  fate = 'cannot be reached'
  while True:
    try:
      left = max(0.1, deadline - time.monotonic())
      with dial(where, left) as plain:
        fate = f'has not answered for {timeout:g} s'
        return _ask(invitation, what, plain)
    except OSError as error:
      if time.monotonic() >= deadline:
        raise RunError(f'the coordinator {where} {fate}') from error
      time.sleep(0.2)


def _ask(
  invitation: Invitation, what: Any, plain: socket.socket
) -> tuple[bytes, str, bytes]:
  with client_context().wrap_socket(plain) as link:
    found = link.getpeercert(binary_form=True) or b''
    if not _is_known(invitation, found):
      raise RunError(f'the coordinator {invitation.address} {_OTHER}')
    for message in (messages.Hello(invitation.token), messages.Ask(what)):
      link.sendall(frame(messages.encode(message)))
    with link.makefile('rb') as file:
      size = int.from_bytes(file.read(4))
      content = file.read(size)
    if not size or len(content) < size:
      raise ConnectionError('it closed the connection')
    answer = messages.from_coordinator(content)
    if not isinstance(answer, messages.Told):
      raise RunError(
        f'the coordinator {invitation.address} rejects the token of the '
        'invitation'
      )
    certificate = ssl.DER_cert_to_PEM_cert(found).encode()
    return answer.content, link.getsockname()[0], certificate
