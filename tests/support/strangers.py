"""Messages that a stranger may send to the port of process 0."""

import contextlib
import os

import msgspec

from tests.support.members import Caller


def signed(content, is_answered=True):
  """Sends a message with a token: a value, or bytes as they are."""
  if not isinstance(content, bytes):
    content = msgspec.msgpack.encode(content)

  def attack(stranger, token):
    caller = Caller(stranger, token)
    caller.frames.send(content)
    if is_answered:
      with contextlib.suppress(OSError):
        caller.receive()

  return attack


def raw(data):
  return lambda stranger, token: stranger.sendall(data)


def joins(**fields):
  """Returns what a process says first, with other values of some fields."""
  return msgspec.msgpack.encode(GOOD | fields)


HELLO = b'selsync 2 ' + 32 * b'0' + b'\n'
GOOD = {
  'type': 'Join',
  'name': '1',
  'address': 'offer of 1',
  'run': {'processes': '2'},
  'timeout': 60.0,
  'welcomes': False,
}
FRAME = joins()
ATTACKS = {
  'nothing': raw(b''),
  'an HTTP client': raw(b'GET / HTTP/1.0\r\n\r\n'),
  'bytes': raw(os.urandom(4096)),
  'a long line': raw(b'a' * 2**21),
  'a long frame': raw(HELLO + b'a' * 2**21),
  'the old protocol': raw(b'selsync 1 ' + 32 * b'0' + b'\n'),
  'no signature': raw(HELLO + len(FRAME).to_bytes(4) + FRAME),
  'a wrong signature': raw(
    HELLO + (32 + len(FRAME)).to_bytes(4) + 32 * b'0' + FRAME
  ),
  'an impostor': signed(FRAME),
  'no run': signed({key: GOOD[key] for key in GOOD if key != 'run'}),
  'the run is null': signed(joins(run=None)),
  'another run': signed(joins(run={'processes': '3'})),
  'a list as name': signed(joins(name=[1])),
  'a number as name': signed(joins(name=1)),
  'index 0': signed(joins(name='0')),
  'index -1': signed(joins(name='-1')),
  'index 2': signed(joins(name='2')),
  'index 01': signed(joins(name='01')),
  'a huge index': signed(joins(name='9' * 5000)),
  'two lines as name': signed(joins(name='1\n')),
  'no timeout': signed(joins(timeout=float('nan'))),
  'a vote': signed({'type': 'Stop'}, is_answered=False),
  'asks for a key': signed({'type': 'Ask', 'what': 'key'}, is_answered=False),
  'nesting': signed(b'\x91' * 100_000),
  'a list': signed([]),
  'null': signed(None),
  'no message': signed(b'\xc1'),
}
