"""Strangers on the port of process 0."""

import contextlib
import socket
import threading
import time

import pytest

from selsync_jax.cluster import server, world
from tests.support.members import connect, TOKEN
from tests.support.strangers import ATTACKS, HELLO


@pytest.mark.parametrize('token', ['', TOKEN, 'other'])
def test_strangers_neither_join_nor_end_nor_delay_a_run(token, port, meet):
  """Strangers with the token, too, except the impostor."""
  agreed, members, strangers = {'processes': 2}, [], []
  thread = threading.Thread(target=lambda: members.extend(meet((0, agreed))))
  thread.start()
  for name, attack in ATTACKS.items():
    if name == 'an impostor' and token == TOKEN:
      continue
    strangers.append(connect(port))
    with contextlib.suppress(OSError):  # It may be cut off before its end.
      attack(strangers[-1], token)
    assert thread.is_alive(), name
  members.extend(meet((1, agreed)))  # The strangers are still connected.
  thread.join()
  assert [member.offer for member in members] == ['offer of 0'] * 2
  for stranger in strangers:
    stranger.close()


def test_a_crowd_of_silent_strangers_is_not_in_the_way(port, meet):
  agreed, members = {'processes': 2}, []
  thread = threading.Thread(target=lambda: members.extend(meet((0, agreed))))
  thread.start()
  strangers = [connect(port) for _ in range(200)]
  members.extend(meet((1, agreed)))
  thread.join()
  assert [member.offer for member in members] == ['offer of 0'] * 2
  for stranger in strangers:
    stranger.close()


def test_a_drop_at_a_time_does_not_extend_the_hearing(port, monkeypatch, meet):
  monkeypatch.setattr(server, 'GREETING', 0.5)
  thread = threading.Thread(target=meet, args=((0, {'processes': 2}),))
  thread.start()
  sent = b''
  with connect(port) as stranger, contextlib.suppress(ConnectionError):
    for byte in HELLO:  # Until process 0 closes the connection.
      stranger.sendall(bytes([byte]))
      sent += bytes([byte])
      time.sleep(0.1)
  assert sent != HELLO
  meet((1, {'processes': 2}))
  thread.join()


def test_a_port_that_somebody_else_answers_is_told(port, meet):
  with socket.create_server(('localhost', port)) as other:

    def answer():
      with other.accept()[0] as caller:
        caller.sendall(b'x\n')

    thread = threading.Thread(target=answer)
    thread.start()
    (error,) = meet((1, {'processes': 2}))
    thread.join()
  assert str(error) == (
    f'process 0 at localhost:{port}: it does not answer like a process of a run'
  )


@pytest.mark.parametrize(
  'host, listens', [('localhost', '127.0.0.1'), ('127.0.0.2', '127.0.0.2')]
)
def test_process_0_listens_on_its_own_interface(host, listens, port):
  with world.listen(f'{host}:{port}'):
    with socket.create_connection((listens, port)):
      pass
    with pytest.raises(ConnectionRefusedError):
      socket.create_connection(('127.0.0.3', port))


@pytest.mark.parametrize('host', ['no-such-host.invalid', '192.0.2.1'])
def test_behind_a_forwarded_address_it_listens_on_all(host, port):
  with (
    world.listen(f'{host}:{port}'),
    socket.create_connection(('127.0.0.3', port)),
  ):
    pass
