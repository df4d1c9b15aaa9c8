"""The processes of a world, tested with threads instead of processes."""

import atexit
import contextlib
import os
import random
import socket
import threading
import time

import pytest

from selsync_jax.cluster import processes, world
from selsync_jax.cluster.connection import SignedFrames
from selsync_jax.cluster.preemption import Agreement
from selsync_jax.config import ConfigError, RunError
from tests.support.marks import slow
from tests.support.members import Caller, connect, die, freeze, TOKEN
from tests.support.strangers import joins

AGAIN = 'restart all processes to resume from the last checkpoint'


def test_all_get_the_offer_of_process_0(meet):
  agreed = {'processes': 3, 'config': '{}'}
  same = agreed | {'island': None}  # As if it were not there.
  members = meet((0, agreed), (1, agreed), (2, same))
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
  assert all(isinstance(error, RunError) for error in errors)
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


def test_who_was_refused_may_come_again(meet):
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
  peer = Caller(connect(port), TOKEN)
  peer.frames.send(joins(run={'processes': '3'}))
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
  'is gone': (die, 1),
  'has failed': (lambda victim: victim.fail(2), 1),
  'was stopped by a signal': (lambda victim: victim._stop(75), 75),
}


@pytest.fixture
def exits(monkeypatch):
  """The calls that processes leave for the exit of Python."""
  exits = []
  monkeypatch.setattr(atexit, 'register', lambda *args: exits.append(args))
  return exits


@pytest.mark.parametrize('fate', FATES)
@pytest.mark.parametrize(
  'victim, survivors', [(0, [1]), (1, [0]), (1, [0, 2])], ids=str
)
def test_survivors_end_alike_with_one_line_that_says_what_became_of_another(
  victim, survivors, fate, meet, ends, exits, capfd
):
  agreed = {'processes': 1 + len(survivors)}
  members = meet(*((i, agreed) for i in sorted([victim, *survivors])))
  act, code = FATES[fate]
  act(members[victim])
  assert [ends.get(timeout=30) for _ in survivors] == [code] * len(survivors)
  assert sorted(capfd.readouterr().err.splitlines()) == [
    f'process {i}: process {victim} {fate}; {AGAIN}' for i in survivors
  ]
  assert exits == [(os._exit, 2)] * (fate == 'has failed')
  assert ends.empty()  # The victim has its own exit code.


def test_process_0_hears_of_an_end_after_all_others(meet, ends, monkeypatch):
  """It may end at once, and the server with it."""
  agreed = {'processes': 3}  # No sign of life is due meanwhile:
  members = meet(*((i, agreed) for i in range(3)), timeout=300.0)
  own, *others = members[0]._server._known
  send, heard = SignedFrames.send, []

  def note(caller, *contents):
    heard.append(caller)
    send(caller, *contents)

  monkeypatch.setattr(SignedFrames, 'send', note)
  die(members[1])
  assert [ends.get(timeout=30) for _ in range(2)] == [1, 1]
  (other,) = (caller for caller in others if caller in heard)
  assert heard.index(other) < heard.index(own)


def test_who_fails_of_the_same_error_keeps_its_own_words(
  meet, ends, exits, monkeypatch, capfd
):
  monkeypatch.setattr(world, 'GRACE', 5.0)
  members = meet(*((i, {'processes': 2}) for i in range(2)))
  members[1].fail(1)
  members[0].fail(1)
  assert exits == [(os._exit, 1)] * 2
  time.sleep(0.1)
  assert ends.empty()
  assert capfd.readouterr().err == ''


def test_processes_that_leave_are_not_missed(meet, together, ends, capfd):
  members = meet(*((i, {'processes': 3}) for i in range(3)))
  together(lambda member: member.leave(), *members)
  die(members[1])
  together(lambda member: member.close(), members[0], members[2])
  assert ends.empty()
  assert capfd.readouterr().err == ''


def test_who_has_left_and_waits_hears_that_the_last_one_fails(
  meet, ends, exits, capfd
):
  members = meet(*((i, {'processes': 3}) for i in range(3)))

  def leave(member):
    with contextlib.suppress(RunError):  # The process would have ended.
      member.leave()

  waiting = [threading.Thread(target=leave, args=(members[i],)) for i in (0, 2)]
  for thread in waiting:
    thread.start()
  members[1].fail(1)
  assert [ends.get(timeout=30) for _ in waiting] == [1, 1]
  assert sorted(capfd.readouterr().err.splitlines()) == [
    f'process {i}: process 1 has failed; {AGAIN}' for i in (0, 2)
  ]
  for thread in waiting:
    thread.join()


def test_who_has_left_does_not_wait_forever(meet, ends, monkeypatch, capfd):
  monkeypatch.setattr(world, 'LEAVING', 0.2)
  members = meet(*((i, {'processes': 2}) for i in range(2)), timeout=2.0)
  with pytest.raises(RunError):
    members[0].leave()
  assert [ends.get(timeout=30) for _ in members] == [1, 1]
  line = 'process 0: the others have not finished within 0.2 s; ' + AGAIN
  assert line in capfd.readouterr().err.splitlines()


@pytest.mark.parametrize('victim, survivor', [(0, 1), slow(1, 0)])
def test_a_silent_process_is_lost_after_the_timeout(
  victim, survivor, meet, ends, capfd
):
  """When it wakes, it ends too."""
  members = meet(*((i, {'processes': 2}) for i in range(2)), timeout=1.0)
  freeze(members[victim], 2.5)
  assert ends.get(timeout=30) == 1
  assert capfd.readouterr().err == (
    f'process {survivor}: process {victim} does not answer; {AGAIN}\n'
  )
  assert ends.get(timeout=30) == 1
  assert capfd.readouterr().err == (
    f'process {victim}: process {survivor} is gone; {AGAIN}\n'
  )


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1])
def test_a_process_that_wakes_in_time_is_not_missed(victim, meet, ends):
  members = meet(*((i, {'processes': 2}) for i in range(2)), timeout=1.0)
  for _ in range(4):
    freeze(members[victim], 0.5)
    time.sleep(0.7)
  assert ends.empty()


@pytest.mark.parametrize('seed', range(6))
def test_processes_that_are_asked_to_stop_do_so_after_the_same_step(
  seed, meet, together
):
  """Whichever process is asked, and however far each one is."""
  rng = random.Random(seed)
  members = meet(*((i, {'processes': 3}) for i in range(3)))
  asked = rng.sample(members, rng.choice([1, 1, 2, 3]))
  pauses = {one: [rng.uniform(0, 0.004) for _ in range(999)] for one in members}

  def train(member):
    for step, pause in enumerate(pauses[member], 500):
      time.sleep(pause)
      if member in asked and step == 510:
        member.agreement.ask()
      if member.agreement.stops_after(step):
        return step
    return None

  last = together(train, *members)
  assert last[0] is not None and last == [last[0]] * 3


def test_a_process_that_waits_for_the_agreement_ends_with_its_peer(
  meet, ends, capfd
):
  members = meet(*((i, {'processes': 2}) for i in range(2)))
  freeze(members[1], 0.5)  # It does not say how far it is.
  members[0].agreement.ask()
  wait = members[0].agreement.stops_after
  threading.Thread(target=wait, args=(7,), daemon=True).start()
  die(members[1])
  assert ends.get(timeout=30) == 1
  assert capfd.readouterr().err == f'process 0: process 1 is gone; {AGAIN}\n'


class Recorder:
  """A world that only records what it is told."""

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
  assert slept == ([world.GRACE] if waits else [])
