"""The coordinator: islands join, leave, and stop."""

from concurrent import futures
import dataclasses
import functools
import itertools
import json
import socket
import threading
import time

import numpy as np
import pytest

from selsync_jax.cluster import connection, link
from selsync_jax.cluster.protocol import coordinator, messages
from selsync_jax.config import BusyError, ConfigError, RunError
from selsync_jax.islands import (
  credentials,
  joining,
  server,
)
from tests.support.meetings import (
  admit,
  came,
  enter,
  met,
  said_by_hand,
  until,
)


@pytest.fixture
def point(said):
  with server.CoordinatorServer(2, timeout=20.0, say=said.put) as point:
    yield point


def talk(pool, islands):
  """Exchanges messages; returns the received ones."""
  islands = [island.result() for island in islands]
  messages = [np.array([len(peers.names[peers.index])]) for peers in islands]
  exchanged = pool.map(lambda p, m: p.exchange([m] * 2), islands, messages)
  return [np.concatenate(received).tolist() for received in exchanged]


def test_islands_that_meet_can_talk_in_the_order_of_their_names(point, pool):
  assert talk(pool, came(point, pool, 'maui', 'hawaii')) == [[6, 4]] * 2


def test_those_that_come_again_meet_again(point, pool):
  for run in 'a run', 'a run', 'another run':
    again = came(point, pool, 'hawaii', 'maui', run=run)
    assert talk(pool, again) == [[6, 4]] * 2
    futures.wait(pool.submit(island.result().close) for island in again)


def test_one_that_its_loop_cannot_let_in_is_refused_while_the_others_train(
  said, monkeypatch
):
  monkeypatch.setattr(coordinator, 'ENDING', 0.2)
  served = {'minimum': 2, 'welcomes': False, 'say': said.put}
  with met('abc', **served) as (point, (*_, c), join):
    c.fail()
    until(said, 'c has failed')
    with pytest.raises(RunError, match='the others train; their loop admits'):
      join('c')
    assert point.status()['present'] == 2


def test_one_that_was_killed_while_it_waited_takes_its_place_again(
  point, said, pool
):
  (first,) = came(point, pool, 'maui')
  said.get(timeout=20)
  again = came(point, pool, 'maui')
  with pytest.raises(RunError, match='another island has joined as maui'):
    first.result()
  assert talk(pool, again + came(point, pool, 'oahu')) == [[4, 4]] * 2


def test_one_that_would_run_something_else_is_refused(point, said, pool):
  (first,) = came(point, pool, 'maui')
  said.get(timeout=20)
  (other,) = came(point, pool, 'oahu', run='another run')
  with pytest.raises(
    RunError, match='island oahu would run something else than maui'
  ):
    other.result()
  assert talk(pool, [first, *came(point, pool, 'oahu')]) == [[4, 4]] * 2


def test_one_too_many_is_refused_and_disturbs_nobody(point, pool):
  islands = came(point, pool, 'maui', 'oahu')
  futures.wait(islands)
  (third,) = came(point, pool, 'hawaii')
  with pytest.raises(RunError, match='hawaii is not one of maui, oahu'):
    third.result()
  assert talk(pool, islands) == [[4, 4]] * 2


def test_those_that_are_missed_are_counted(pool):
  with server.CoordinatorServer(3, timeout=0.3) as point:
    (alone,) = came(point, pool, 'maui')
    with pytest.raises(
      RunError, match=r'1 of 3 islands .* within 0\.3 s: maui'
    ):
      alone.result()


def test_a_coordinator_that_keeps_its_secrets_is_itself_again(tmp_path, pool):
  path = tmp_path / 'point.json'
  kept = credentials.kept_credentials(path)
  assert path.stat().st_mode & 0o077 == 0
  with server.CoordinatorServer(2, credentials=kept) as point:
    first = point.invitation
    again = credentials.kept_credentials(path)
  with server.CoordinatorServer(2, credentials=again, port=point.port) as point:
    assert point.invitation == first
    assert talk(pool, came(point, pool, 'maui', 'oahu')) == [[4, 4]] * 2


def test_secrets_that_are_damaged_or_open_to_others_are_refused(tmp_path):
  path = tmp_path / 'point.json'
  credentials.kept_credentials(path)
  whole = path.read_text()
  token, certificate, _ = json.loads(whole)
  other = credentials.create_credentials().key.decode()
  for content, mode, why in [
    (whole, 0o644, 'other users can read this file'),
    (whole.replace('-----BEGIN', '-----BEGAN'), 0o600, 'holds no secrets'),
    (json.dumps([token, certificate, other]), 0o600, 'holds no secrets'),
    ('{}', 0o600, 'holds no secrets of a coordinator; delete the file'),
  ]:
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f'^--keep={path}: {why}'):
      credentials.kept_credentials(path)
  with pytest.raises(ConfigError, match=f'^--keep={tmp_path}: Is a dir'):
    credentials.kept_credentials(tmp_path)


def test_all_stop_after_the_step_that_the_last_has_reached(pool):
  """Whichever island is asked, and however far each one is."""

  def train(peers, ahead):
    for step in itertools.count():
      if step == 20 and ahead:
        peers.agreement.ask()
      if peers.agreement.stops_after(step):
        return step
      time.sleep(0.001 if ahead else 0.01)

  with met(['maui', 'oahu']) as (_, islands, _):
    one, other = pool.map(train, islands, (True, False))
  assert one == other >= 20


@pytest.fixture
def four(said):
  """A coordinator of four islands, of which two have ended; and `join`."""
  with met('abcd', minimum=2, say=said.put) as (point, islands, join):
    for peers in islands[1:3]:
      peers.fail()
    yield point, islands[::3], join


def test_one_that_comes_again_prepares_and_is_then_let_in(four, said, pool):
  """Although another island is missing."""
  _, islands, join = four
  c = join('c')
  until(said, 'c has rejoined')
  assert c.prepares and c.names == ('a', 'c', 'd') and c.slot == 2
  futures.wait(pool.submit(peers.share, np.zeros(1)) for peers in islands)
  with pytest.raises(RunError, match='only prepares; it must enter first'):
    c.share(np.zeros(1))
  assert not any(peers.admits for peers in islands)
  late = pool.submit(enter, c)
  admit(islands, pool)
  late.result()
  assert [p.was_admitted for p in (*islands, c)] == [0, 0, 1]
  for peers in (*islands, c):
    assert peers.names == ('a', 'c', 'd') and [*peers.slots] == [*'abcd']
  assert c.slot == 2 and not c.prepares


def becomes(holds):
  """Waits until a condition holds."""
  deadline = time.monotonic() + 20
  while not holds():
    assert time.monotonic() < deadline
    time.sleep(0.02)


def hello(name, timeout=20.0):
  """The introduction of an island that sends nothing more."""
  run = {'what it runs': 'a run'}
  return messages.Join(name, 'host:1', run, timeout, True)


def entrance():
  """The message of an island that asks to be admitted."""
  return messages.Arrived(messages.Place(0, '', 1, None, 'enter'))


@pytest.mark.parametrize('is_prepared', [False, True])
def test_one_that_comes_no_longer_disturbs_nobody(
  is_prepared, four, said, pool
):
  point, islands, join = four
  with said_by_hand(point, hello('b')) as hear:
    until(said, 'b has rejoined')
    if is_prepared:
      hear.say(entrance())
  until(said, 'b is gone')
  late = pool.submit(enter, join('b'))
  admit(islands, pool)
  assert late.result().names == islands[0].names == ('a', 'b', 'd')


@pytest.mark.parametrize('is_prepared', [False, True])
def test_who_comes_when_the_others_end_meets_them_again(
  is_prepared, four, said, pool
):
  _, islands, join = four
  b = join('b')
  late = pool.submit(enter, b) if is_prepared else None
  islands[0].fail()
  until(said, 'a has failed')
  again = [pool.submit(join, name) for name in 'acd']
  late = late or pool.submit(enter, b)
  assert not late.result().was_admitted
  for peers in (late.result(), *(each.result() for each in again)):
    assert peers.names == tuple('abcd') and not peers.prepares


def connections():
  """The threads of connections, and of coordinators."""
  return {thread for thread in threading.enumerate() if '(_run)' in thread.name}


def test_nothing_is_left_of_an_island_that_ends_early(pool, monkeypatch):
  """As it is interrupted, fails, or is refused."""

  def interrupted(self, flow):
    raise KeyboardInterrupt

  with server.CoordinatorServer(2) as point:
    before = connections()
    with monkeypatch.context() as patch:
      patch.setattr(link.Link, 'run', interrupted)
      with pytest.raises(KeyboardInterrupt):
        joining.join(point.invitation, 'a', 'a run')
    becomes(lambda: not (connections() - before or point._callers))
    islands = [each.result() for each in came(point, pool, *'ab')]
    assert len(connections() - before) == 2
    for peers in islands:
      peers.fail()
    (other,) = came(point, pool, 'c')
    with pytest.raises(RunError, match='island c is not one of a, b'):
      other.result()
    becomes(lambda: not (connections() - before or point._callers))


def test_an_island_that_fails_is_named_to_those_that_wait(point, said, pool):
  maui, oahu = (each.result() for each in came(point, pool, 'maui', 'oahu'))
  waiting = pool.submit(maui.exchange, [np.zeros(1)] * 2)
  oahu.fail()
  with pytest.raises(RunError, match=r'^island oahu has failed$'):
    waiting.result()
  with pytest.raises(RunError, match=r'^island oahu has failed$'):
    maui.share(np.zeros(1))
  assert 'oahu has failed' in [said.get(timeout=20) for _ in range(3)]


def test_an_invitation_that_is_wrong_lets_nobody_in(point, said):
  right = point.invitation
  for field, value, timeout, line in [
    ('token', 'wrong', 20.0, 'rejects the token of the invitation'),
    (
      'fingerprint',
      '0' * 64,
      20.0,
      'has another certificate than the invitation',
    ),
    ('address', '127.0.0.1:1', 0.1, 'cannot be reached'),
  ]:
    wrong = dataclasses.replace(right, **{field: value})
    with pytest.raises(RunError, match=line):
      joining.join(wrong, 'maui', 'a run', timeout)
  with socket.create_server(('127.0.0.1', 0)) as silent:
    address = f'127.0.0.1:{silent.getsockname()[1]}'
    stopped = dataclasses.replace(right, address=address)
    line = f'^the coordinator {address} has not answered for 0.3 s$'
    with pytest.raises(RunError, match=line):
      joining.join(stopped, 'maui', 'a run', 0.3)
  assert said.get(timeout=20) == (
    'a caller without the token of this run was turned away'
  )
  assert said.empty()
  with pytest.raises(RunError, match="'nonsense' is not an invitation"):
    joining.Invitation.parse('nonsense')


def test_an_island_listens_at_the_port_that_it_is_given(point, pool):
  """So a firewall can let others in; the port must be free."""
  with socket.create_server(('127.0.0.1', 0)) as server_socket:
    taken = server_socket.getsockname()[1]
    line = f'^port {taken}: cannot be opened at .*; another program'
    with pytest.raises(BusyError, match=line):
      joining.join(point.invitation, 'maui', 'a run', port=taken)
  with pytest.raises(ConfigError, match=r'^port=-1: must be a port, from 0'):
    joining.join(point.invitation, 'maui', 'a run', port=-1)
  join = functools.partial(joining.join, point.invitation, run='a run')
  maui = pool.submit(join, 'maui', port=taken)
  oahu = pool.submit(join, 'oahu').result(timeout=20)
  with socket.create_connection(('127.0.0.1', taken), 20):
    pass  # Its server listens there.
  rows = pool.submit(maui.result().exchange, [np.ones(2)] * 2)
  np.testing.assert_array_equal(oahu.exchange([np.zeros(2)] * 2)[0], np.ones(2))
  rows.result(timeout=20)


def test_an_island_that_reads_nothing_is_cut_off(monkeypatch):
  """After too many bytes are queued for it; until then it delays no island."""
  monkeypatch.setattr(connection, 'LIMIT', 1000)
  waits, cut = bytearray(), []

  class Frozen:
    write = waits.extend
    is_closing = staticmethod(lambda: bool(cut))
    get_write_buffer_size = staticmethod(lambda: len(waits))
    abort = staticmethod(lambda: cut.append(True))

  frames = connection.Frames(*[lambda *args: None] * 3)
  frames.connection_made(Frozen())
  while not cut:
    frames.send(b'.' * 100)
  assert len(waits) == 1040  # Ten, each after its length.
