"""A meeting point that is killed and started again."""

from concurrent import futures
import dataclasses
import functools
import itertools
import socket
import threading
import time

import numpy as np
import pytest

from selsync_jax.config import LostError, RunError, Stopped
from selsync_jax.islands import (
  circle,
  control,
  flight,
  gathering,
  journal,
  meeting,
  seat,
)
from selsync_jax.islands.standing import Standing
from tests.support.meetings import admit, came, enter, until


@pytest.fixture
def kept(said):
  """Credentials, and a function that serves a meeting point with them."""
  credentials = flight.create_credentials()
  return functools.partial(
    meeting.MeetingPoint, 3, credentials=credentials, say=said.put
  )


@pytest.mark.parametrize('only_first', [False, True])
def test_a_meeting_point_that_is_started_again_disturbs_nobody(
  only_first, kept, said, pool, monkeypatch
):
  """Also if one island has heard the last share, and the others have not."""
  killed, send = threading.Event(), circle.Circle._send
  shares = itertools.count()

  def send_until_killed(self, head, body=b''):
    if killed.is_set() and self.number == 1:
      return
    if 'shared' in head and next(shares) == 20:
      killed.set()
      if only_first:
        self._seats[0].send(head, body)
      return
    send(self, head, body)

  monkeypatch.setattr(circle.Circle, '_send', send_until_killed)

  def unit(peers, k):
    first = peers.share(np.array([k, peers.index]))
    return np.sum([first, peers.exchange([np.array([k, 7])] * 3)])

  def train(peers):
    found = [peers.complete(unit, k) for k in range(20)]
    peers.close()
    return found

  with kept() as point:
    islands = [each.result() for each in came(point, pool, *'abc')]
    work = [pool.submit(train, peers) for peers in islands]
    killed.wait(20)
  with kept(port=point.port):
    for each in work:
      assert each.result(timeout=30) == [6 * k + 24 for k in range(20)]
  assert killed.is_set()
  until(said, 'a has found the meeting point again')


def test_a_meeting_point_may_end_again_before_all_have_found_it(
  kept, said, pool, monkeypatch
):
  opened, let = control.Control._open, threading.Event()

  def open_when_let(self):
    if not let.is_set() and self._member.name == 'c' and self._now:
      raise OSError
    opened(self)

  monkeypatch.setattr(control.Control, '_open', open_when_let)

  def unit(peers):
    return peers.complete(lambda peers: peers.share(np.ones(1)))

  with kept() as point:
    islands = [each.result() for each in came(point, pool, *'abc')]
  work = [pool.submit(unit, peers) for peers in islands]
  with kept(port=point.port):
    found = {f'{name} has found the meeting point again' for name in 'ab'}
    while found:
      found.discard(said.get(timeout=20))
  let.set()
  with kept(port=point.port):
    for each in work:
      assert np.sum(each.result(timeout=30)) == 3
    futures.wait(pool.submit(peers.close) for peers in islands)


def names(peers):
  """Who is there after a share."""
  peers.complete(lambda peers: peers.share(np.zeros(1)))
  return peers.names


@pytest.mark.slow
def test_a_meeting_point_that_has_become_silent_is_noticed(kept, pool):
  """Its host takes connections, and answers nothing."""
  with kept() as point:
    join = functools.partial(
      meeting.join, point.invitation, run='a run', timeout=2.0
    )
    islands = [*pool.map(join, 'abc')]
  with socket.create_server(('', point.port)):
    for each in [pool.submit(names, peers) for peers in islands]:
      with pytest.raises(RunError, match=r'^the meeting point does not answer'):
        each.result(timeout=15)
  for peers in islands:
    peers.fail()


@pytest.mark.parametrize('dies', [False, True])
def test_all_meet_though_the_meeting_point_dies_before_all_hear_that_they_have(
  dies, kept, pool, monkeypatch
):
  """Also if one that has heard it dies, too, and comes again."""
  killed, send = threading.Event(), circle.Circle._send

  def send_until_killed(self, head, body=b''):
    if killed.is_set():
      return send(self, head, body)
    for one in self._seats[::2]:
      one.send(head, body)
    killed.set()

  monkeypatch.setattr(circle.Circle, '_send', send_until_killed)
  with kept() as point:
    a, b, c = came(point, pool, *'abc')
    futures.wait([a, c])
  if dies:
    c.result()._control._left.set()  # It looks for nobody.
  with kept(port=point.port) as point:
    if dies:
      (c,) = came(point, pool, 'c')
    islands = [each.result() for each in (a, b, c)]
    assert [*pool.map(names, islands)] == [('a', 'b', 'c')] * 3
    futures.wait(pool.submit(peers.close) for peers in islands)


@pytest.mark.parametrize(
  'comes', [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_the_others_go_on_without_one_that_dies_with_the_meeting_point(
  comes, kept, said, pool
):
  with kept(minimum=2) as point:
    join = functools.partial(
      meeting.join, point.invitation, run='a run', timeout=3.0, welcomes=True
    )
    a, b, c = pool.map(join, 'abc')
    if comes:  # Else it would be there from the beginning.
      futures.wait(pool.submit(names, peers) for peers in (a, b, c))
    c._control._left.set()  # It looks for nobody.
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
    until(said, 'c has not found the meeting point again')


def test_one_whose_place_another_process_has_taken_is_late():
  """It was suspended, has not heard of it, and finds the new meeting point."""

  def seat_of(address, generation, islands):
    found = seat.Seat(None)
    found.member = control.Member('b', address, 'a run', 60.0, True)
    first = Standing.first({'a': 'host:1', 'b': islands}, ['a', 'b'])
    found.standing = dataclasses.replace(first, generation=generation)
    return found

  old, new = seat_of('old:1', 2, 'old:1'), seat_of('new:1', 4, 'new:1')
  there = gathering.Gathering(2, 1, journal.Journal(lambda line: None))
  there.add(new)
  with pytest.raises(gathering.LateError, match='went on without island b'):
    there.add(old)
  assert there.seats == [new]


@pytest.mark.parametrize('moment', ['asked', 'told'])
def test_all_stop_after_one_step_though_the_meeting_point_dies(
  moment, kept, pool, monkeypatch
):
  died, send = threading.Event(), circle.Circle._send

  def send_until_killed(self, head, body=b''):
    if moment == 'told' and 'last' in head and not died.is_set():
      self._seats[0].send(head)  # Nobody else hears of it.
      died.set()
      return
    if moment == 'asked' and 'stop' in head:
      died.set()
    send(self, head, body)

  monkeypatch.setattr(circle.Circle, '_send', send_until_killed)

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


def test_one_that_was_let_go_as_the_meeting_point_died_has_left(
  kept, pool, monkeypatch
):
  """Though it has not heard so."""
  let_go, send = threading.Event(), seat.Seat.send

  def send_but_this(self, head, body=b''):
    if head.get('fate') == 'has left':
      return let_go.set()
    send(self, head, body)

  monkeypatch.setattr(seat.Seat, 'send', send_but_this)
  with kept(minimum=2) as point:
    a, b, c = (each.result() for each in came(point, pool, *'abc'))
    a.agreement.ask()
    assert let_go.wait(20)
  with kept(minimum=2, port=point.port):
    each = [pool.submit(names, peers) for peers in (a, b, c)]
    line = r'^left after a signal; .*: the others went on without island a$'
    with pytest.raises(Stopped, match=line):
      each[0].result()
    assert [found.result() for found in each[1:]] == [('b', 'c')] * 2
    futures.wait(pool.submit(peers.close) for peers in (b, c))


def test_an_island_that_the_meeting_point_has_ended_is_not_let_in_again(
  kept, pool
):
  with kept(minimum=2) as point:
    a, b, c = (each.result() for each in came(point, pool, *'abc'))
    a._control._reader.cancel()
    line = r'the others went on without island a$'
    with pytest.raises(LostError, match=line):
      a.complete(lambda peers: peers.share(np.zeros(1)))
    futures.wait(pool.submit(peers.close) for peers in (b, c))


def test_who_waits_to_be_let_in_when_the_meeting_point_dies_comes_again(
  kept, pool, monkeypatch
):
  """Though one has heard that others are let in, and another has not."""
  died, send = threading.Event(), circle.Circle._send

  def send_until_killed(self, head, body=b''):
    if head.get('admits') and not died.is_set():
      self._seats[0].send(head, body)
      died.set()
      return
    send(self, head, body)

  monkeypatch.setattr(circle.Circle, '_send', send_until_killed)
  with kept(minimum=2) as point:
    join = functools.partial(
      meeting.join, point.invitation, run='a run', timeout=20.0, welcomes=True
    )
    a, b, c = pool.map(join, 'abc')
    c.fail()
    late = pool.submit(enter, join('c'))
    first = pool.submit(admit, (a, b), pool)
    assert died.wait(20)
  with kept(minimum=2, port=point.port):
    with pytest.raises(RunError, match=r'^the meeting point is gone$'):
      late.result()
    first.result()
    again = pool.submit(enter, join('c'))
    admit((a, b), pool)
    islands = a, b, again.result()
    assert [peers.names for peers in islands] == [('a', 'b', 'c')] * 3
    futures.wait(pool.submit(peers.close) for peers in islands)
