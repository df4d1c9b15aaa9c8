"""A crowd of strangers uses every port of islands that train."""

import contextlib
import os
import socket

import numpy as np
from pyarrow import flight as arrow

from selsync_jax.cluster.protocol import messages
from selsync_jax.islands import credentials
from tests.support.meetings import met, said_by_hand

CROWD = 10  # Connections of each kind to each port, which stay open.
GARBAGE = {
  'nothing': b'',
  'an HTTP client': b'GET / HTTP/1.0\r\n\r\n',
  'bytes': os.urandom(4096),
  'HTTP/2 without TLS': b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0' * 4096,
}


def crowd(port, point, opened):
  """Connects repeatedly, and sends messages that no island sends."""
  address, context = ('localhost', port), credentials.client_context()
  context.set_alpn_protocols(['h2'])
  for _ in range(CROWD):
    for garbage in GARBAGE.values():
      plain = opened.enter_context(socket.create_connection(address))
      with contextlib.suppress(OSError):  # It has been cut off.
        plain.sendall(garbage)
    plain = socket.create_connection(address)
    secret = opened.enter_context(context.wrap_socket(plain))
    with contextlib.suppress(OSError):
      secret.sendall(GARBAGE['bytes'])
  for what in ('key', 'status') * CROWD * (port == point.port):
    with said_by_hand(point, messages.Ask(what), token='a guess') as hear:
      assert isinstance(hear(), messages.Ended)
      assert hear() is None
  client = arrow.FlightClient(
    f'grpc+tls://localhost:{port}', disable_server_verification=True
  )
  with client:
    for token in (None, 'a guess') * CROWD:
      headers = [(b'token', token.encode())] if token else []
      options = arrow.FlightCallOptions(timeout=10, headers=headers)
      with contextlib.suppress(arrow.FlightError):
        [*client.do_action(arrow.Action('key', b''), options)]
        raise AssertionError('the key for a stranger')


def test_islands_train_on_and_one_line_is_said(said, pool, capfd):
  with (
    met('ab', say=said.put) as (point, islands, _),
    contextlib.ExitStack() as opened,
  ):
    ports = point.port, *(peers._outbox.port for peers in islands)
    strangers = [pool.submit(crowd, port, point, opened) for port in ports]
    while not all(each.done() for each in strangers):
      x = np.random.default_rng(0).normal(size=1000)
      calls = [pool.submit(peers.exchange, [x, 2 * x]) for peers in islands]
      for i, call in enumerate(calls):
        found = call.result(timeout=20)
        np.testing.assert_array_equal(found, [(i + 1) * x, (i + 1) * x])
    for each in strangers:
      each.result()
  lines = [said.get() for _ in range(said.qsize())]
  assert len(lines) == 5  # Two have joined, and finished.
  assert lines.count('a caller without the token of this run was turned away')
  assert capfd.readouterr().err == ''
