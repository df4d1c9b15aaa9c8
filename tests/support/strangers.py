"""Messages that a stranger may send to the port of process 0."""

import contextlib
import os

from selsync_jax.cluster.link import Link
from tests.support.members import soon


def signed(*messages):
  """Sends messages with a token, as text."""

  def attack(stranger, token):
    link = Link(stranger, token, listens=False, deadline=soon())
    for text in messages:
      link.send_text(text.encode())
    # The answer, if there is one.
    with contextlib.suppress(OSError):
      link.receive(soon())

  return attack


def raw(data):
  return lambda stranger, token: stranger.sendall(data)


HELLO = b'selsync 1 ' + 32 * b'0' + b'\n'
GOOD = '{"process": 1, "agreed": {"processes": 2}}'
ATTACKS = {
  'nothing': raw(b''),
  'an HTTP client': raw(b'GET / HTTP/1.0\r\n\r\n'),
  'bytes': raw(os.urandom(4096)),
  'a long line': raw(b'a' * 2**21),
  'a long introduction': raw(HELLO + b'a' * 2**21),
  'the old protocol': raw(f'{GOOD}\n'.encode()),
  'no signature': raw(HELLO + f'{GOOD}\n'.encode()),
  'a wrong signature': raw(HELLO + 64 * b'0' + f' {GOOD}\n'.encode()),
  'an impostor': signed(GOOD),
  'no agreed': signed('{"process": 1}'),
  'agreed is null': signed('{"process": 1, "agreed": null}'),
  'a list as index': signed('{"process": [1], "agreed": {"processes": 2}}'),
  'a bool as index': signed('{"process": true, "agreed": {"processes": 2}}'),
  'a float as index': signed('{"process": 1.0, "agreed": {"processes": 2}}'),
  'index 0': signed('{"process": 0, "agreed": {"processes": 2}}'),
  'index -1': signed('{"process": -1, "agreed": {"processes": 2}}'),
  'index 2': signed('{"process": 2, "agreed": {"processes": 2}}'),
  'a huge index': signed(f'{{"process": {"9" * 5000}, "agreed": {{}}}}'),
  'nesting': signed('[' * 100_000),
  'a list': signed('[]'),
  'null': signed('null'),
  'no JSON': signed('{'),
}
