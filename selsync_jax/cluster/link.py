"""Signed messages between two processes over one TCP connection.

Anybody may connect to a port. Both ends first send a random number; a key for
each direction is then derived from both numbers and the token that the
processes of a run share. A message is a line of JSON after its HMAC, which also
covers the message's index, so that nothing can be forged, repeated or sent
back. A message with a wrong signature is rejected before it is parsed. Messages
are not secret.
"""

from collections.abc import Mapping
import hmac
import json
import secrets
import socket
import threading
import time
from typing import Any

TOKEN = 'SELSYNC_CLUSTER_TOKEN'  # The variable that holds a run's token.
# The random number follows; 1 is the protocol's version.
_HELLO = b'selsync 1 '
LIMIT = 2**18  # The largest message, in bytes.


class StrangerError(OSError):
  """The other end does not speak this protocol, or has another token."""


class Link:
  """One end of a connection whose two ends have introduced themselves.

  The end that `listens` has accepted the connection. A deadline is the value of
  `time.monotonic` at which to give up. Every method raises `OSError` if the
  connection is lost; `TimeoutError` and `StrangerError` are kinds of it.
  """

  def __init__(
    self, peer: socket.socket, token: str, *, listens: bool, deadline: float
  ):
    self._peer, self._buffer = peer, b''
    self._sent = self._received = 0
    self._sending = threading.Lock()
    own = secrets.token_hex(16).encode()
    peer.settimeout(max(0.001, deadline - time.monotonic()))
    peer.sendall(_HELLO + own + b'\n')
    hello = self._line(deadline, len(_HELLO) + len(own))
    if not hello.startswith(_HELLO):
      raise StrangerError('it does not answer like a process of a run')
    other = hello.removeprefix(_HELLO)
    both = own + other if listens else other + own
    keys = [
      hmac.digest(token.encode(), side + both, 'sha256')
      for side in (b'listens', b'calls')
    ]
    self._key, self._others_key = keys if listens else keys[::-1]

  def send(self, message: Mapping[str, Any]) -> None:
    """Sends a message; several threads may do so at the same time."""
    self.send_text(json.dumps(message).encode())

  def send_text(self, text: bytes) -> None:
    """Signs and sends a line, which need not be a message."""
    with self._sending:
      line = _signature(self._key, self._sent, text) + b' ' + text + b'\n'
      self._sent += 1
      self._peer.sendall(line)

  def receive(self, deadline: float) -> dict[str, Any]:
    """Returns the next message."""
    signature, _, text = self._line(deadline, LIMIT).partition(b' ')
    expected = _signature(self._others_key, self._received, text)
    if not hmac.compare_digest(signature, expected):
      raise StrangerError(f'it has another {TOKEN}')
    self._received += 1
    try:
      message = json.loads(text)
    except (ValueError, RecursionError) as error:
      raise StrangerError('it sends something that is not JSON') from error
    if not isinstance(message, dict):
      raise StrangerError('it sends something that is not a message')
    return message

  def _line(self, deadline: float, limit: int) -> bytes:
    """Reads a line. On timeout, the partial line stays in the buffer."""
    while b'\n' not in self._buffer:
      if len(self._buffer) > limit:
        raise StrangerError('it sends too long a line')
      self._peer.settimeout(max(0.001, deadline - time.monotonic()))
      data = self._peer.recv(2**14)
      if not data:
        raise ConnectionError('it closed the connection')
      self._buffer += data
    line, _, self._buffer = self._buffer.partition(b'\n')
    return line

  def is_closed(self) -> bool:
    """Whether the other end has closed. No thread may be receiving."""
    timeout = self._peer.gettimeout()
    self._peer.settimeout(0)
    try:
      return not self._peer.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
      return False
    except OSError:
      return True
    finally:
      self._peer.settimeout(timeout)

  def close(self) -> None:
    """Closes the connection."""
    self._peer.close()


def _signature(key: bytes, index: int, text: bytes) -> bytes:
  digest = hmac.digest(key, index.to_bytes(8) + text, 'sha256')
  return digest.hex().encode()
