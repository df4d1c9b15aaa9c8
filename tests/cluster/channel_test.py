"""The channel between processes, tested with threads instead of processes."""

import atexit
from concurrent import futures
import os
import random
import socket
import threading
import time

import pytest

from selsync_jax.cluster import channel as channels
from selsync_jax.cluster import processes
from selsync_jax.cluster.agreement import Agreement
from selsync_jax.cluster.link import Link
from selsync_jax.cluster.reception import ClusterError
from selsync_jax.config import ConfigError, RunError
from tests.support.marks import slow
from tests.support.members import connect, soon, TOKEN

pytestmark = pytest.mark.filterwarnings(
  # A channel's sockets stay open for as long as its process lives.
  'ignore::pytest.PytestUnraisableExceptionWarning',
  # Where a process would end, its thread does.
  'ignore::pytest.PytestUnhandledThreadExceptionWarning',
)
AGAIN = 'restart all processes to resume from the last checkpoint'


def test_all_get_the_offer_of_process_0(meet):
  agreed = {'processes': 3, 'config': '{}'}
  members = meet(*((i, agreed) for i in range(3)))
  assert [member.offer for member in members] == ['offer of 0'] * 3


TWO, THREE, FOUR = ({'processes': count} for count in (2, 3, 4))
# The members that join, the missing ones, and why a member is refused.
UNMATCHED = {
  'one missing': ([(0, THREE), (1, THREE)], 'process 2', ''),
  'two missing': ([(0, FOUR), (2, FOUR)], 'processes 1, 3', ''),
  'twice': (
    [(0, THREE), (1, THREE), (1, THREE)],
    *('process 2', 'two processes have the index 1'),
  ),
  'count': (
    [(0, TWO), (1, THREE)],
    *('process 1', 'process 1 has processes 3, process 0 has 2'),
  ),
  'x': (
    [(0, TWO | {'x': 'a' * 99}), (1, TWO)],
    *('process 1', f'process 1 has x None, process 0 has {"a" * 57}...'),
  ),
  'range': (
    [(0, TWO), (7, TWO)],
    *('process 1', 'process 7 is not one of 2 processes'),
  ),
  'token': (
    [(0, TWO), (1, TWO, 'other')],
    'process 1',
    'process 0 at localhost:PORT: it has another SELSYNC_CLUSTER_TOKEN',
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize('case', UNMATCHED)
def test_who_does_not_match_is_told_why_and_so_are_those_that_wait(
  case, meet, port
):
  members, missing, refused = UNMATCHED[case]
  errors = meet(*members, timeout=2)
  assert all(isinstance(error, ClusterError) for error in errors)
  said = sorted(str(error).replace(str(port), 'PORT') for error in errors)
  waiting = (
    f'of {members[0][1]["processes"]} processes, {missing} did not connect '
    'within 2 s'
  )
  if refused and case != 'token':  # Process 0 cannot identify it.
    waiting += f': {refused}'
  turned_away = [refused] * bool(refused)
  others = [waiting] * (len(members) - len(turned_away))
  assert said == sorted(turned_away + others)


def test_who_was_refused_may_come_again(port, meet):
  wrong, right = {'processes': 2, 'seed': 1}, {'processes': 2, 'seed': 0}
  results = []
  thread = threading.Thread(target=lambda: results.extend(meet((0, right))))
  thread.start()
  (error,) = meet((1, wrong))
  assert str(error) == 'process 1 has seed 1, process 0 has 0'
  results.extend(meet((1, right)))
  thread.join()
  assert [member.offer for member in results] == ['offer of 0'] * 2


def test_a_process_that_died_before_all_had_come_can_be_replaced(port, meet):
  agreed, results = {'processes': 3}, []
  thread = threading.Thread(target=lambda: results.extend(meet((0, agreed))))
  thread.start()
  peer = Link(connect(port), TOKEN, listens=False, deadline=soon())
  peer.send({'process': 1, 'agreed': agreed})
  peer.close()
  results.extend(meet((1, agreed), (2, agreed)))
  thread.join()
  assert [member.offer for member in results] == ['offer of 0'] * 3


def test_a_second_run_on_the_port_is_refused_and_the_first_goes_on(port, meet):
  agreed = {'processes': 2}
  members = meet((0, agreed), (1, agreed))
  late = meet((0, agreed), (1, agreed), (1, agreed, 'other'))
  assert [str(error).partition(' (')[0] for error in late] == [
    f'process 0 cannot listen on port {port}',
    'two processes have the index 1',
    f'process 0 at localhost:{port}: it has another SELSYNC_CLUSTER_TOKEN',
  ]
  assert [member.offer for member in members] == ['offer of 0'] * 2


def test_a_process_0_that_does_not_answer_is_named_with_its_address(port, meet):
  (error,) = meet((1, {'processes': 2}), timeout=0.2)
  assert str(error) == (
    f'process 0 could not be reached at localhost:{port} within 0.2 s: '
    '[Errno 111] Connection refused'
  )


def test_a_port_that_is_taken_is_named(port, meet):
  with socket.create_server(('', port)):
    (error,) = meet((0, {'processes': 2}))
  assert f'listen on port {port}' in str(error)


FATES = {
  'is gone': (None, 1),
  'has failed': ({'fate': channels.FAILED}, 1),
  'was stopped by a signal': ({'fate': channels.STOPPED, 'code': 75}, 75),
}


@pytest.mark.parametrize('fate', FATES)
@pytest.mark.parametrize(
  'victim, survivors', [(0, [1]), (1, [0]), (1, [0, 2])], ids=str
)
def test_survivors_end_alike_with_one_line_that_says_what_became_of_another(
  victim, survivors, fate, meet_peer, ends, capfd
):
  *_, peer = meet_peer(victim, *survivors)
  news, code = FATES[fate]
  if news:
    peer.send({'process': victim} | news)
  else:
    peer.die()
  # Process 2 tells process 0 as well, which would have ended by then.
  count = 2 * len(survivors) - 1
  assert [ends.get(timeout=30) for _ in range(count)] == [code] * count
  lines = capfd.readouterr().err.splitlines()
  assert len(lines) <= count and set(lines) == {
    f'process {i}: process {victim} {fate}; {AGAIN}' for i in survivors
  }


@pytest.mark.parametrize('number', [0, 1])
def test_a_failing_process_says_so_and_exits_without_waiting(
  number, meet_peer, ends, monkeypatch
):
  exits = []
  monkeypatch.setattr(atexit, 'register', lambda *args: exits.append(args))
  channel, peer = meet_peer(1 - number, number)
  channel.fail(2)
  news = {'process': number, 'fate': channels.FAILED, 'code': 1}
  assert peer.receive() == news
  assert exits == [(os._exit, 2)]
  peer.die()
  time.sleep(0.1)
  assert ends.empty()  # It already has its own exit code.


def test_who_fails_of_the_same_error_keeps_its_own_words(
  meet_peer, ends, monkeypatch, capfd
):
  monkeypatch.setattr(channels, 'GRACE', 5.0)
  monkeypatch.setattr(atexit, 'register', lambda *_: None)
  channel, peer = meet_peer(0, 1)
  peer.send({'process': 0, 'fate': channels.FAILED})
  channel.fail(1)
  peer.die()
  time.sleep(0.1)
  assert ends.empty()
  assert capfd.readouterr().err == ''


def test_who_leaves_is_not_missed(meet_peer, ends, capfd):
  _, peer = meet_peer(1, 0)
  peer.send({'process': 1, 'fate': channels.LEFT})
  peer.die()
  time.sleep(0.1)
  assert ends.empty()
  assert capfd.readouterr().err == ''


def test_who_has_left_and_waits_hears_that_the_last_one_fails(
  meet_peer, ends, capfd
):
  *members, peer = meet_peer(1, 0, 2)
  for member in members:
    member.leave()
  peer.send({'process': 1, 'fate': channels.FAILED})
  # Process 2 tells process 0 as well, which would have ended by then.
  assert [ends.get(timeout=30) for _ in range(3)] == [1, 1, 1]
  peer.die()
  assert set(capfd.readouterr().err.splitlines()) == {
    f'process {i}: process 1 has failed; {AGAIN}' for i in (0, 2)
  }


@pytest.mark.parametrize('victim, survivor', [(0, 1), slow(1, 0)])
def test_a_silent_process_is_lost_after_the_timeout(
  victim, survivor, meet_peer, ends, capfd, monkeypatch
):
  monkeypatch.setattr(channels, 'BEAT', 0.05)
  _, peer = meet_peer(victim, survivor, timeout=1.0)
  peer.send({})
  assert ends.get(timeout=30) == 1
  assert capfd.readouterr().err == (
    f'process {survivor}: process {victim} does not answer; {AGAIN}\n'
  )
  peer.die()


@pytest.mark.slow
def test_a_process_that_wakes_in_time_is_not_missed(
  meet_peer, ends, monkeypatch
):
  monkeypatch.setattr(channels, 'BEAT', 0.05)
  _, peer = meet_peer(1, 0, timeout=1.0)
  for _ in range(4):
    time.sleep(0.4)
    peer.send({})
  assert ends.empty()
  peer.send({'process': 1, 'fate': channels.LEFT})
  peer.die()


@pytest.mark.parametrize('seed', range(6))
def test_processes_that_are_asked_to_stop_do_so_after_the_same_step(seed, meet):
  """Whichever process is asked, and however far each one is."""
  rng = random.Random(seed)
  members = meet(*((i, {'processes': 3}) for i in range(3)))
  asked = rng.sample(range(3), rng.choice([1, 1, 2, 3]))

  def train(i, channel, pauses):
    for step, pause in enumerate(pauses, 500):
      time.sleep(pause)
      if i in asked and step == 510:
        channel.agreement.ask()
      if channel.agreement.stops_after(step):
        return step
    return None

  with futures.ThreadPoolExecutor(3) as pool:
    pauses = [[rng.uniform(0, 0.004) for _ in range(2000)] for _ in range(3)]
    last = list(pool.map(train, range(3), members, pauses))
  assert last[0] is not None and last == [last[0]] * 3


def test_a_process_that_waits_for_the_agreement_ends_with_its_peer(
  meet_peer, ends, capfd
):
  channel, peer = meet_peer(1, 0)
  channel.agreement.ask()
  assert peer.receive() == {'stop': True}
  threading.Thread(
    target=channel.agreement.stops_after, args=(7,), daemon=True
  ).start()
  peer.die()
  assert ends.get(timeout=30) == 1
  assert capfd.readouterr().err == f'process 0: process 1 is gone; {AGAIN}\n'
  # The thread would have ended with its process.
  channel.agreement.hear({'last': 7})


class Recorder:
  """A channel that only records its messages."""

  def __init__(self):
    self.said, self.agreement = [], Agreement()

  def leave(self):
    self.said.append('left')

  def close(self):
    self.said.append('closed')

  def fail(self, code):
    self.said.append(f'failed with {code}')


@pytest.mark.parametrize(
  'error, said, waits',
  [
    (None, ['left', 'closed'], False),
    (SystemExit(75), ['left', 'closed'], False),
    (ConfigError('wrong'), ['failed with 2'], False),
    (RunError('stopped'), ['failed with 1'], False),
    (ValueError('a collective was interrupted'), ['failed with 1'], True),
  ],
)
def test_a_process_leaves_or_fails_as_its_work_ended(
  error, said, waits, monkeypatch
):
  """An error that a lost peer may have caused first waits for that news."""
  slept = []
  monkeypatch.setattr(processes.time, 'sleep', slept.append)
  recorder = Recorder()
  cluster = processes.Cluster(0, 2, recorder)
  if error:
    with pytest.raises(type(error)), cluster:
      raise error
  else:
    with cluster:
      pass
  assert recorder.said == said
  assert slept == ([channels.GRACE] if waits else [])
