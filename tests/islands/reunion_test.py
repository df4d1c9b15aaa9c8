"""A coordinator that is killed and started again."""

from concurrent import futures
import functools
import itertools
import socket
import threading
import time

import numpy as np
import pytest

from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.coordinator import Coordinator
from selsync_jax.config import LostError, RunError, Stopped
from selsync_jax.islands import joining, server
from selsync_jax.islands.credentials import create_credentials
from selsync_jax.islands.program import complete
from tests.support.meetings import admit, came, enter, until


@pytest.fixture
def kept(said):
  """Credentials, and a function that serves a coordinator with them."""
  credentials = create_credentials()
  return functools.partial(
    server.CoordinatorServer, 3, credentials=credentials, say=said.put
  )


@pytest.fixture
def dies(monkeypatch):
  """Silences the first coordinator from some message on.

  `dies(heard)` returns an event, which is set then. `heard(message)` returns a
  slice of the islands that still hear the message, or `None` for any other one.
  """

  def dies(heard):
    died, dead, send = threading.Event(), [], server.CoordinatorServer._send

    def send_until_then(self, numbers, message):
      if self in dead:
        return
      some = None if died.is_set() else heard(message)
      if some is None:
        return send(self, numbers, message)
      send(self, numbers[some], message)
      dead.append(self)
      died.set()

    monkeypatch.setattr(server.CoordinatorServer, '_send', send_until_then)
    return died

  return dies


NOBODY, FIRST, ALL = slice(0), slice(1), slice(None)


def kill(peers):
  """Ends an island without a message; it does not reconnect."""
  connected = peers._link
  connected._closes = True
  connected._loop.call(lambda: connected._frames.transport.abort())
  assert connected._closed.wait(20)


def names(peers):
  """The members after a share."""
  complete(peers, lambda peers: peers.share(np.zeros(1)))
  return peers.names


@pytest.mark.parametrize('heard', [NOBODY, FIRST])
def test_a_coordinator_that_is_started_again_disturbs_nobody(
  heard, kept, said, pool, dies
):
  """Even if one island has heard the last answer, and the others have not."""
  answers = itertools.count()
  died = dies(
    lambda message: (
      heard
      if isinstance(message, messages.Answer) and next(answers) == 20
      else None
    )
  )

  def unit(peers, k):
    first = peers.share(np.array([k, peers.index]))
    return np.sum([first, peers.exchange([np.array([k, 7])] * 3)])

  def train(peers):
    found = [complete(peers, unit, k) for k in range(20)]
    peers.close()
    return found

  with kept() as point:
    islands = [each.result() for each in came(point, pool, *'abc')]
    work = [pool.submit(train, peers) for peers in islands]
    assert died.wait(20)
  with kept(port=point.port):
    for each in work:
      assert each.result(timeout=30) == [6 * k + 24 for k in range(20)]
  until(said, 'a has found the coordinator again')


@pytest.mark.slow
def test_a_coordinator_that_has_become_silent_is_noticed(kept, pool):
  """Its host takes connections, and answers nothing."""
  with kept() as point:
    join = functools.partial(
      joining.join, point.invitation, run='a run', timeout=2.0
    )
    islands = [*pool.map(join, 'abc')]
  with socket.create_server(('', point.port)):
    for each in [pool.submit(names, peers) for peers in islands]:
      with pytest.raises(RunError, match=r'^the coordinator has not answered'):
        each.result(timeout=15)
  for peers in islands:
    peers.fail()


@pytest.mark.parametrize('c_dies', [False, True])
def test_all_meet_though_the_coordinator_dies_before_all_hear_that_they_have(
  c_dies, kept, pool, dies
):
  """Even if an island that has heard it dies, too, and rejoins."""
  some = slice(0, None, 2)
  dies(
    lambda message: some if isinstance(message, messages.Membership) else None
  )
  with kept() as point:
    a, b, c = came(point, pool, *'abc')
    futures.wait([a, c])
  if c_dies:
    kill(c.result())
  with kept(port=point.port) as point:
    if c_dies:
      (c,) = came(point, pool, 'c')
    islands = [each.result() for each in (a, b, c)]
    assert [*pool.map(names, islands)] == [('a', 'b', 'c')] * 3
    futures.wait(pool.submit(peers.close) for peers in islands)


@pytest.mark.parametrize(
  'comes', [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_the_others_go_on_without_one_that_dies_with_the_coordinator(
  comes, kept, said, pool
):
  with kept(minimum=2) as point:
    join = functools.partial(
      joining.join, point.invitation, run='a run', timeout=3.0, welcomes=True
    )
    a, b, c = pool.map(join, 'abc')
    if comes:  # Else it would be there from the beginning.
      futures.wait(pool.submit(names, peers) for peers in (a, b, c))
      kill(c)
    else:
      c._link._closes = True  # It ends before the coordinator notices.
  with kept(minimum=2, port=point.port):
    islands = [a, b]
    if comes:
      islands += [join('c')]
      late = pool.submit(enter, islands[2])
      admit((a, b), pool)
      late.result()
    each = [*pool.map(names, islands)]
    assert each == [tuple('abc')[: len(islands)]] * len(islands)
    futures.wait(pool.submit(peers.close, finished=False) for peers in islands)
    again = [*pool.map(join, 'abc')]
    assert [*pool.map(names, again)] == [('a', 'b', 'c')] * 3
    futures.wait(pool.submit(peers.close) for peers in again)
  if not comes:
    until(said, 'c has not found the coordinator again')


def test_one_whose_place_another_process_has_taken_is_late():
  """It was suspended, has not heard of the change, and reconnects."""

  def join_of(address, generation):
    islands = {'a': 'host:1', 'b': address}
    now = messages.Membership(generation, '', islands, ['a', 'b'], 0)
    known = messages.Known(now, False, [], None, None)
    return messages.Join('b', address, {}, 60.0, True, known=known)

  machine = Coordinator(2, 1, 60.0, None, '', lambda *_: None)
  machine.hear(0, join_of('new:1', 4), 0.0)
  machine.hear(1, join_of('old:1', 2), 0.0)
  line = 'the others continued without island b'
  assert [*machine.outgoing] == [([1], messages.Ended(line, 'lost'))]
  assert [seat.join.address for seat in machine.present] == ['new:1']


@pytest.mark.parametrize(
  'kind, heard', [(messages.Stop, ALL), (messages.Last, FIRST)]
)
def test_all_stop_after_one_step_though_the_coordinator_dies(
  kind, heard, kept, pool, dies
):
  died = dies(lambda message: heard if isinstance(message, kind) else None)

  def train(peers):
    for step in itertools.count():
      if step == 20 + peers.index:
        peers.agreement.ask()
      if peers.agreement.stops_after(step):
        peers.close()
        return step
      time.sleep(0.01)

  with kept() as point:
    islands = [each.result() for each in came(point, pool, *'abc')]
    work = [pool.submit(train, peers) for peers in islands]
    assert died.wait(20)
  with kept(port=point.port):
    steps = {each.result(timeout=30) for each in work}
  assert len(steps) == 1 and min(steps) >= 20


def test_one_that_was_released_as_the_coordinator_died_has_left(
  kept, pool, monkeypatch
):
  """Although it has not heard so."""
  died, send = threading.Event(), server.CoordinatorServer._send

  def send_but_this(self, numbers, message):
    if isinstance(message, messages.Ended) and message.kind == 'left':
      return died.set()
    send(self, numbers, message)

  monkeypatch.setattr(server.CoordinatorServer, '_send', send_but_this)
  with kept(minimum=2) as point:
    a, b, c = (each.result() for each in came(point, pool, *'abc'))
    a.agreement.ask()
    assert died.wait(20)
  with kept(minimum=2, port=point.port):
    each = [pool.submit(names, peers) for peers in (a, b, c)]
    line = r'^left after a signal; the others continued without island a$'
    with pytest.raises(Stopped, match=line):
      each[0].result()
    assert [found.result() for found in each[1:]] == [('b', 'c')] * 2
    futures.wait(pool.submit(peers.close) for peers in (b, c))


def test_an_island_that_the_coordinator_has_ended_is_not_let_in_again(
  kept, pool
):
  with kept(minimum=2) as point:
    a, b, c = (each.result() for each in came(point, pool, *'abc'))
    a._link._loop.call(lambda: a._link._frames.transport.abort())
    line = r'the others continued without island a$'
    with pytest.raises(LostError, match=line):
      complete(a, lambda peers: peers.share(np.zeros(1)))
    futures.wait(pool.submit(peers.close) for peers in (b, c))


def test_one_that_waits_to_be_admitted_when_the_coordinator_dies_is_admitted(
  kept, pool, dies
):
  """Although one has heard that others are admitted, and another has not."""
  died = dies(
    lambda message: (
      FIRST if isinstance(message, messages.Answer) and message.admits else None
    )
  )
  with kept(minimum=2) as point:
    join = functools.partial(
      joining.join, point.invitation, run='a run', timeout=20.0, welcomes=True
    )
    a, b, c = pool.map(join, 'abc')
    c.fail()
    assert [*pool.map(names, (a, b))] == [('a', 'b')] * 2
    again = join('c')
    late = pool.submit(enter, again)

    def step(peers):
      while peers.size < 3:
        complete(peers, lambda peers: peers.share(np.zeros(1)))
        if peers.admits:
          peers.admit()

    steps = [pool.submit(step, peers) for peers in (a, b)]
    assert died.wait(20)
  with kept(minimum=2, port=point.port):
    for each in steps:
      each.result(timeout=30)
    islands = a, b, late.result()
    assert [peers.names for peers in islands] == [('a', 'b', 'c')] * 3
    futures.wait(pool.submit(peers.close) for peers in islands)
