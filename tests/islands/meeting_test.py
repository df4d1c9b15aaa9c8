"""Where islands meet."""

from concurrent import futures
import dataclasses
import queue

import numpy as np
import pytest

from selsync_jax.config import RunError
from selsync_jax.islands import meeting


@pytest.fixture
def said():
  """What the meeting point says."""
  return queue.Queue()


@pytest.fixture
def point(said):
  with meeting.MeetingPoint(2, timeout=20.0, say=said.put) as point:
    yield point


@pytest.fixture
def pool():
  with futures.ThreadPoolExecutor(4) as pool:
    yield pool


def came(point, pool, *names, run='a run'):
  """Islands that join, as futures of their peers."""
  invitation = meeting.Invitation.parse(str(point.invitation))
  return [
    pool.submit(meeting.join, invitation, name, run, 20.0) for name in names
  ]


def talk(pool, islands):
  """What the islands receive from each other."""
  islands = [island.result() for island in islands]
  messages = [np.array([len(peers.names[peers.index])]) for peers in islands]
  exchanged = pool.map(lambda p, m: p.exchange([m] * 2), islands, messages)
  return [np.concatenate(received).tolist() for received in exchanged]


def test_islands_that_meet_can_talk_in_the_order_of_their_names(point, pool):
  assert talk(pool, came(point, pool, 'maui', 'hawaii')) == [[6, 4]] * 2


def test_those_that_come_again_meet_again(point, pool):
  talk(pool, came(point, pool, 'maui', 'hawaii'))
  assert talk(pool, came(point, pool, 'hawaii', 'maui')) == [[6, 4]] * 2


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
    RunError, match='oahu has another strategy, or other shapes, than maui'
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
  with meeting.MeetingPoint(3, timeout=0.3) as point:
    (alone,) = came(point, pool, 'maui')
    with pytest.raises(
      RunError, match=r'1 of 3 islands .* within 0\.3 s: maui'
    ):
      alone.result()


def test_an_invitation_that_is_wrong_lets_nobody_in(point, said):
  right = point.invitation
  for field, value, timeout, line in [
    ('token', 'wrong', 20.0, 'rejects the token of the invitation'),
    ('fingerprint', '0' * 64, 20.0, 'is not that of the invitation'),
    ('address', '127.0.0.1:1', 0.1, 'cannot be reached'),
  ]:
    wrong = dataclasses.replace(right, **{field: value})
    with pytest.raises(RunError, match=line):
      meeting.join(wrong, 'maui', 'a run', timeout)
  assert said.empty()
  with pytest.raises(RunError, match="'nonsense' is not an invitation"):
    meeting.Invitation.parse('nonsense')
