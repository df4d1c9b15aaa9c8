"""Decisions of the coordinator, message by message, without a network."""

import gc
import itertools
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.coordinator import Coordinator
from selsync_jax.cluster.protocol.member import (
  FinishedError,
  Member,
  Regrouped,
)
from selsync_jax.config import LostError, RunError


class Islands:
  """Islands and a coordinator whose messages arrive at once."""

  def __init__(self, names, minimum=1, grace=None, timeouts=(10.0,)):
    self.now, self.lines, self.members = 0.0, [], {}
    self.connected, self.numbers = {}, itertools.count()
    self.point = Coordinator(
      len(names),
      minimum,
      20.0,
      grace,
      'x',
      lambda *note: self.lines.append(note),
    )
    for name, timeout in zip(names, itertools.cycle(timeouts), strict=False):
      self.join(name, timeout)
    for member in self.members.values():
      done(member.enter())

  def join(self, name, timeout=10.0):
    number = next(self.numbers)
    join = messages.Join(name, f'{name}:{number}', {}, timeout, True)
    member = self.members[name] = self.connected[number] = Member(
      join, 'host:1'
    )
    member.opened()
    self.pump()
    return member

  def lose(self, name):
    (number,) = (
      n for n, m in self.connected.items() if m is self.members[name]
    )
    del self.connected[number], self.members[name]
    self.point.lost(number, self.now)
    self.pump()

  def pump(self):
    numbers = self.connected
    while self.point.outgoing or any(m.outgoing for m in numbers.values()):
      for number, member in numbers.items():
        while member.outgoing:
          message = messages.encode(member.outgoing.popleft())
          self.point.hear(number, messages.from_island(message), self.now)
      while self.point.outgoing:
        heard_by, message = self.point.outgoing.popleft()
        for number in heard_by:
          if number in numbers:
            numbers[number].hear(message, self.now)

  def wait(self, seconds, silent=()):
    for _ in range(round(seconds / 0.1)):
      self.now += 0.1
      for name, member in self.members.items():
        if name not in silent:
          member.tick(self.now)
      self.point.tick(self.now)
      self.pump()

  def arrive(self, names, *arrival, **more):
    places = [self.members[name].arrive(*arrival, **more) for name in names]
    self.pump()
    return places

  def left(self):
    """The islands that have not ended."""
    return ''.join(n for n, m in self.members.items() if not m.error)


def done(flow):
  """The result of a flow that need not wait."""
  with pytest.raises(StopIteration) as found:
    next(flow)
  return found.value.value


AVERAGE = 'average', '', 'psum', 'float32', (2000,)


@pytest.mark.parametrize(
  'names, accusations, left, line',
  [
    ('ab', ['ab'], 'b', 'a cannot reach b'),
    ('ab', ['ab', 'ba'], 'a', 'b cannot be reached by a'),
    ('abc', ['ab', 'cb'], 'ac', 'b cannot be reached by a, c'),
    ('abcd', ['ab', 'ac', 'ad'], 'bcd', 'a cannot reach b, c, d'),
  ],
)
def test_who_ends_when_islands_cannot_reach_each_other(
  names, accusations, left, line
):
  islands = Islands(names)
  places = islands.arrive(names, *AVERAGE)
  for accuser, accused in accusations:
    islands.members[accuser].accuse(places[0], accused)
  islands.pump()
  islands.wait(11.0)
  assert islands.left() == left
  (error,) = {str(m.error) for m in islands.members.values() if m.error}
  assert error == f'island {line}'


def test_an_accusation_of_one_that_has_not_come_yet_counts_nothing():
  islands = Islands('ab')
  (place,) = islands.arrive('a', *AVERAGE)
  islands.members['a'].accuse(place, 'b')
  islands.wait(20.0)
  assert islands.left() == 'ab'
  islands.arrive('b', *AVERAGE)
  islands.members['a'].accuse(place, 'b')
  islands.members['a'].acquit('b')
  islands.pump()
  islands.wait(20.0)
  assert islands.left() == 'ab'


def test_one_word_about_a_wrong_message_is_believed_once():
  islands = Islands('abcd')
  for accused, left in (('b', 'acd'), ('c', 'cd')):
    places = islands.arrive(islands.left(), *AVERAGE)
    islands.members['a'].accuse(places[0], accused, 'int8[3]')
    islands.pump()
    islands.wait(2.0)
    assert islands.left() == left
    for name in left:
      done(islands.members[name].enter())
  line = 'island a finds wrong what c sends'
  assert str(islands.members['a'].error) == line


def test_an_island_that_is_late_is_waited_for_no_longer_than_the_grace():
  """If enough islands wait, and it has taken a step with them."""
  islands = Islands('abc', minimum=2, grace=3.0)
  for step in 1, 2:
    for member in islands.members.values():
      member.done = messages.Alive(1, step)
    islands.wait(2.0)
  islands.arrive('a', 'commit')
  islands.wait(5.0)  # It waits alone.
  assert islands.left() == 'abc'
  islands.arrive('b', 'commit')
  islands.wait(5.0)
  assert islands.left() == 'ab'
  with pytest.raises(LostError, match=r'^island c is more than 3 s late$'):
    islands.members['c'].check()


def test_nobody_is_late_that_still_receives_something():
  islands = Islands('abc', minimum=2, grace=3.0)
  for step in 1, 2:
    for member in islands.members.values():
      member.done = messages.Alive(1, step)
    islands.wait(2.0)
  islands.arrive('abc', *AVERAGE)
  islands.arrive('ab', 'commit')
  islands.wait(20.0)
  islands.arrive('c', 'commit')
  islands.arrive('abc', 'landing', body=None)  # Its vote will follow.
  islands.wait(20.0)
  assert islands.left() == 'abc'


def test_the_timeout_of_each_island_counts_for_its_own_silence():
  islands = Islands('abc', timeouts=(1.0, 10.0, 10.0))
  islands.wait(5.0, silent='b')
  assert islands.left() == 'abc'
  islands.wait(1.5, silent='a')
  assert [line[:3] for line in islands.lines[-1:]] == [
    ('ended', 'a', 'has not answered for 1 s')
  ]
  with pytest.raises(Regrouped):
    islands.members['b'].check()


@pytest.mark.parametrize('speaks, least, most', [(0, 36, 40), (1, 12, 16)])
def test_signs_of_life_are_a_tenth_of_the_timeout_apart(
  speaks, least, most, monkeypatch
):
  """An island that says something else sends only its reports."""
  islands = Islands('ab', timeouts=(50.0,))
  said, hear = [], islands.point.hear

  def count(number, message, now):
    said.append(type(message))
    hear(number, message, now)

  monkeypatch.setattr(islands.point, 'hear', count)
  for _ in range(25):
    islands.wait(4.0)
    islands.arrive('ab' * speaks, 'vote')
  assert least <= said.count(messages.Alive) <= most


@pytest.mark.parametrize('operation', ['psum', 'pmax', 'pmin', 'gather'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'int32'])
def test_votes_are_folded_in_the_order_of_the_islands(operation, dtype):
  """So a sum has the same bits as on an island."""
  rows = 100 * np.random.default_rng(0).normal(size=(3, 5))
  rows = rows.astype(getattr(ml_dtypes, dtype, dtype))
  islands = Islands('abc')
  shape = rows[0].shape
  for name, row in reversed([*zip('abc', rows, strict=True)]):
    vote = 'vote', '', operation, dtype, shape, row.tobytes()
    (place,) = islands.arrive(name, *vote)
  expected = rows
  if operation != 'gather':
    fold = messages.FOLDS[operation]
    expected = fold(fold(rows[0], rows[1]), rows[2])
  for member in islands.members.values():
    assert done(member.answer(place)) == expected.tobytes()


def test_nobody_admits_an_island_that_has_another_ones_place():
  islands = Islands('ab', minimum=2)
  late = islands.join('c')
  with pytest.raises(RunError, match=r'island c is not one of a, b$'):
    next(late.enter())


def test_a_name_that_is_there_is_refused():
  """Even if the other island only prepares."""
  islands = Islands('abc', minimum=2)
  islands.lose('b')
  islands.join('b')
  for name in 'ab':
    there = islands.members[name]
    other = islands.join(name)
    islands.members[name] = there
    islands.wait(6.0)
    line = f'the coordinator host:1: island {name} is there already'
    assert str(other.error) == line
  assert islands.left() == 'acb'


@pytest.mark.parametrize('prepares', [False, True])
def test_who_comes_when_the_others_have_finished_has_nothing_to_do(prepares):
  islands = Islands('abc', minimum=2)
  islands.lose('b')
  if prepares:
    islands.join('b')
  for name in 'ac':
    done(islands.members[name].enter())
  islands.arrive('ac', 'leave', body=b'1')
  if prepares:
    done(islands.members['b'].enter())
    flow = islands.members['b'].enter_prepared()
    next(flow)
    islands.pump()
  else:
    flow = islands.join('b').enter()
  line = '^the coordinator host:1: the others have finished this run$'
  with pytest.raises(FinishedError, match=line):
    next(flow)


@pytest.mark.parametrize(
  'votes, joins',
  [(2000, 40), pytest.param(100_000, 200, marks=pytest.mark.slow)],
)
def test_memory_stays_flat_over_votes_and_joins(votes, joins):
  islands = Islands('abc', minimum=2)

  def vote(names):
    return islands.arrive(names, 'vote', '', 'psum', 'int32', (), b'1234')

  def answered(names, place):
    return [done(islands.members[name].answer(place)) for name in names]

  def rejoin():
    islands.lose('c')
    c = islands.join('c')
    done(islands.members['a'].enter()), done(islands.members['b'].enter())
    done(c.enter())
    entering = c.enter_prepared()
    next(entering)
    islands.pump()
    answered('ab', vote('ab')[0])
    assert islands.members['a'].admits
    flows = [islands.members[name].admit() for name in 'ab']
    for flow in flows:
      next(flow)
    islands.pump()
    for flow in (*flows, entering):
      done(flow)

  def work(count, times):
    for _ in range(times):
      rejoin()
    for _ in range(count):
      answered('abc', vote('abc')[0])
    islands.lines.clear()
    gc.collect()

  def held():
    """The bytes that the protocol holds; other threads may allocate, too."""
    own = tracemalloc.Filter(True, '*/cluster/protocol/*')
    found = tracemalloc.take_snapshot().filter_traces([own])
    return sum(trace.size for trace in found.traces)

  work(500, 20)
  tracemalloc.start()
  try:
    work(500, 20)
    before = held()
    work(votes, joins)
    # Python reuses the memory of tuples and counts it where it was first taken:
    # some hundred tuples, however many votes there are.
    assert held() - before < 40_000
  finally:
    tracemalloc.stop()
