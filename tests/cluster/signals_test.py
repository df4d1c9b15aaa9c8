"""Signals to real processes, and other requests to stop."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from selsync_jax.cluster.preemption import Preemption
from tests.support import live_runs

pytestmark = pytest.mark.usefixtures('data_dir')
every_number = pytest.mark.parametrize(
  'number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
)
RESUMES = 'the same command resumes the run'
SECOND = f'ended by a second signal; {RESUMES}'


def owns_signals(pid):
  """Whether a process handles SIGTERM, which Python does not by itself."""
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  (mask,) = [x for x in status.splitlines() if x.startswith('SigCgt')]
  return int(mask.split()[1], 16) >> (signal.SIGTERM - 1) & 1


def wait_until(child, happened):
  """Returns when it has happened, or the child has ended."""
  while child.poll() is None and not happened():
    time.sleep(0.005)


def outcome(child):
  """The exit code and lines of a child that ended without a stack trace."""
  code, lines = live_runs.outcome(child)
  assert not any('Traceback' in x or 'Fatal Python' in x for x in lines), lines
  return code, lines


@every_number
def test_a_signal_before_anything_was_begun_is_one_line_and_code_130(
  number, tmp_path
):
  workdir = tmp_path / 'run'
  child = live_runs.start(live_runs.command('selsync', 1, workdir))
  wait_until(child, lambda: owns_signals(child.pid))
  os.kill(child.pid, number)
  code, (line,) = outcome(child)
  assert code == 130
  assert line.startswith(f'train.py: stopped by {number.name}')
  assert not workdir.exists()


def test_a_signal_before_the_first_step_ends_a_run_that_resumes(tmp_path):
  flags, workdir = ('--config.steps=100000', '--restart'), tmp_path / 'run'
  child = live_runs.start(live_runs.command('selsync', 1, workdir, *flags))
  config = workdir / 'config.json'
  wait_until(child, config.exists)
  os.kill(child.pid, signal.SIGINT)
  code, lines = outcome(child)
  assert code == 75
  # A completed first step is saved. Partly printed output may precede the
  # message in its line.
  assert 'train.py: stopped by a signal' in lines[-1]
  again = RESUMES.replace('command', 'command without --restart')
  assert lines[-1].endswith(again)


PRINTS = r"""
import os, threading, time
from selsync_jax.cluster import signals

leave = os._exit
os._exit = lambda code: time.sleep(0.05) or leave(code)  # So that it shows.
threading.Timer(0.05, signals.end, (3, 'the last word')).start()
while True:
  time.sleep(0.001)
  print('goes on\n', end='', flush=True)
"""


def test_nothing_is_printed_after_the_line_that_ends_a_process():
  child = live_runs.start([sys.executable, '-c', PRINTS])
  code, lines = outcome(child)
  assert code == 3
  assert lines[-1] == 'the last word'


HANDLED = """
import os, signal, sys, threading
from selsync_jax.cluster import signals

signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As nohup does.
heard = {'outer': [], 'inner': []}
done = threading.Event()

def react(name, number):
  heard[name].append(number)
  done.set()

def send(*numbers):
  for number in numbers:
    done.clear()
    os.kill(os.getpid(), number)
    done.wait(60 if number != signal.SIGHUP else 0)

with signals.Handler(lambda number: react('outer', number)):
  send(signal.SIGHUP, signal.SIGTERM)
  with signals.Handler(lambda number: react('inner', number)):
    send(signal.SIGINT)
  send(signal.SIGINT)
print(heard == {'outer': [15, 2], 'inner': [2]} or heard)
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
"""


def test_the_latest_handler_reacts_and_an_ignored_signal_stays_ignored():
  done = live_runs.run(sys.executable, '-c', HANDLED)
  assert (done.stdout, done.stderr) == ('True\n', '')


@pytest.mark.slow
@pytest.mark.parametrize('processes', [1, 2])
def test_no_moment_of_a_signal_leaves_more_than_a_line(
  processes, left_alone, tmp_path
):
  """The moments are spread over the start, which is most of a short run."""
  rng = random.Random(processes)
  command = live_runs.command('selsync', processes, tmp_path)
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    child = live_runs.start(command)
    wait_until(child, lambda pid=child.pid: owns_signals(pid))
    time.sleep(rng.uniform(0, 6))
    child.send_signal(number)
    code, lines = outcome(child)
    assert code in (0, 75, 130), lines
    if code:
      assert 'stopped by' in lines[-1]
    assert sum('stopped by' in line for line in lines) <= processes
  live_runs.finish(command)
  before = left_alone('selsync', processes)
  assert live_runs.differences(before, tmp_path) == []


@pytest.mark.slow
def test_a_signal_at_the_very_end_does_not_take_back_the_success(tmp_path):
  command = live_runs.command('selsync', 1, tmp_path, '--config.steps=2')
  for delay in (0.1, 0.5):
    child = live_runs.start([*command, '--restart'])
    for line in child.stdout:
      if 'samples/s' in line and 'step' not in line:  # The last of the table.
        break
    time.sleep(delay)
    os.kill(child.pid, signal.SIGTERM)
    assert outcome(child)[0] in (0, 75)


@pytest.mark.slow
def test_a_second_signal_ends_all_processes_alike(tmp_path):
  flag = '--config.steps=100000'
  child = live_runs.start(live_runs.command('selsync', 2, tmp_path, flag))
  live_runs.wait_for_rows(tmp_path, 10, child)
  child.send_signal(signal.SIGINT)
  time.sleep(1.1)
  child.send_signal(signal.SIGINT)
  code, lines = outcome(child)
  ends = [line for line in lines if RESUMES in line or 'restart all' in line]
  assert len(ends) == 2, lines
  if code == 130:
    assert all('a second signal' in e or 'by a signal' in e for e in ends)
  else:  # A fast machine has stopped in between.
    assert code == 75 and all('stopped by a signal' in e for e in ends)


@pytest.mark.slow
def test_a_signal_while_the_report_is_written_leaves_it_to_the_next_call(
  tmp_path,
):
  command = live_runs.command('selsync', 1, tmp_path, '--report')
  child = live_runs.start(command)
  wait_until(child, (tmp_path / 'summary.json').exists)
  os.kill(child.pid, signal.SIGINT)
  code, lines = outcome(child)
  assert code == 75
  assert lines[-1] == f'train.py: stopped by a signal; {RESUMES}'
  live_runs.finish(command)
  assert (tmp_path / 'report.html').exists()
  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert summary['steps'] == live_runs.STEPS


LONG_STEP = """
import threading
from selsync_jax.cluster.preemption import Preemption

with Preemption() as preemption:
  preemption.requested(1)
  print('a step that lasts', flush=True)
  threading.Event().wait()
"""


def test_a_second_signal_ends_a_run_at_once_unless_it_is_the_same_request():
  """A shell and a closed terminal each send one, a fraction of a second apart.

  The run is to save after these.
  """
  child = live_runs.start([sys.executable, '-c', LONG_STEP])
  child.stdout.readline()
  for number, seconds in ((signal.SIGHUP, 0.05), (signal.SIGTERM, 1.1)):
    child.send_signal(number)
    time.sleep(seconds)
  assert child.poll() is None
  child.send_signal(signal.SIGINT)
  assert live_runs.outcome(child) == (
    130,
    ['selsync: ended by a second signal; the same command resumes the run'],
  )


def test_a_run_stops_once_its_launcher_has_ended(monkeypatch):
  with Preemption() as preemption:
    monkeypatch.setenv('SELSYNC_LAUNCHER', str(os.getpid()))
    assert not preemption.requested(1)
    launcher = subprocess.Popen(['true'])
    launcher.wait()
    monkeypatch.setenv('SELSYNC_LAUNCHER', str(launcher.pid))
    assert preemption.requested(2)
