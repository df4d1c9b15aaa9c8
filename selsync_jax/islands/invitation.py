"""How an island reaches a coordinator and verifies its identity."""

import dataclasses
import hashlib
import ssl

from selsync_jax.config import RunError


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
    host, _, port = parts[0].rpartition(':')
    is_port = port.isdecimal() and 0 < int(port) < 2**16
    if len(parts) != 3 or not host or not is_port:
      raise RunError(
        f'{text!r} is not an invitation: HOST:PORT/TOKEN/FINGERPRINT, as the '
        'coordinator prints it'
      )
    return cls(*parts)


def fingerprint(certificate: bytes) -> str:
  """Returns the SHA-256 of a certificate in PEM, in hexadecimal."""
  found = ssl.PEM_cert_to_DER_cert(certificate.decode())
  return hashlib.sha256(found).hexdigest()
