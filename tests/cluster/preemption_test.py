"""Requests to stop a run after its step, from sources other than children."""

import os
import signal
import subprocess
import sys
import time

from selsync_jax.cluster.preemption import Preemption
from tests.support import live_runs

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
