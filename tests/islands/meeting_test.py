"""Where islands meet."""

from concurrent import futures
import dataclasses
import itertools
import queue
import time

import numpy as np
import pytest

from selsync_jax.config import ConfigError
from selsync_jax.config import RunError
from selsync_jax.islands import flight
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
  with meeting.MeetingPoint(3, timeout=0.3) as point:
    (alone,) = came(point, pool, 'maui')
    with pytest.raises(
      RunError, match=r'1 of 3 islands .* within 0\.3 s: maui'
    ):
      alone.result()


def test_a_meeting_point_that_keeps_its_secrets_is_itself_again(tmp_path, pool):
  path = tmp_path / 'point.json'
  kept = flight.kept_credentials(path)
  assert path.stat().st_mode & 0o077 == 0
  with meeting.MeetingPoint(2, credentials=kept) as point:
    first = point.invitation
    again = flight.kept_credentials(path)
  with meeting.MeetingPoint(2, credentials=again, port=point.port) as point:
    assert point.invitation == first
    assert talk(pool, came(point, pool, 'maui', 'oahu')) == [[4, 4]] * 2
  path.write_text('{}')
  for wrong, why in (path, 'is of no meeting point'), (tmp_path, 'Is a dir'):
    with pytest.raises(ConfigError, match=f'^--keep={wrong}: {why}'):
      flight.kept_credentials(wrong)


def test_all_stop_after_the_step_that_the_last_has_reached(point, pool):
  """Whoever is asked, and however far each of them is."""
  islands = [island.result() for island in came(point, pool, 'maui', 'oahu')]

  def train(peers, ahead):
    for step in itertools.count():
      if step == 20 and ahead:
        peers.ask_to_stop()
      if peers.stops_after(step):
        return step
      time.sleep(0.001 if ahead else 0.01)

  one, other = pool.map(train, islands, (True, False))
  assert one == other >= 20
  futures.wait(pool.submit(peers.close) for peers in islands)


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
    ('fingerprint', '0' * 64, 20.0, 'is not that of the invitation'),
    ('address', '127.0.0.1:1', 0.1, 'cannot be reached'),
  ]:
    wrong = dataclasses.replace(right, **{field: value})
    with pytest.raises(RunError, match=line):
      meeting.join(wrong, 'maui', 'a run', timeout)
  assert said.empty()
  with pytest.raises(RunError, match="'nonsense' is not an invitation"):
    meeting.Invitation.parse('nonsense')
