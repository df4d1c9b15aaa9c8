"""Fixtures of islands, which are threads or processes."""

from concurrent import futures
import queue
import sys
import threading

import pytest

from selsync_jax.runs.checkpoints import Checkpoints
from tests.support import live_runs


@pytest.fixture
def one_saves_at_a_time(monkeypatch):
  """Orbax does not expect two runs in one process."""
  lock = threading.RLock()

  def locked(method):
    def call(checkpoints, *args):
      with lock:
        result = method(checkpoints, *args)
        checkpoints.wait()
        return result

    return call

  for name in ('save', 'rehearse', 'restore'):
    method = getattr(Checkpoints, name)
    monkeypatch.setattr(Checkpoints, name, locked(method))


@pytest.fixture
def said():
  """Lines that the coordinator prints."""
  return queue.Queue()


@pytest.fixture
def pool():
  with futures.ThreadPoolExecutor(8) as pool:
    yield pool


@pytest.fixture
def start():
  """Starts processes whose output is text, in one stream."""
  started = []

  def start(*command):
    started.append(live_runs.start([sys.executable, *map(str, command)]))
    return started[-1]

  yield start
  for process in started:
    process.kill()
    process.communicate()


@pytest.fixture
def meet(start):
  """Starts coordinators; returns each of them with its invitation."""

  def meet(*flags):
    here = '--host=127.0.0.1', '--port=0'
    point = start('-m', 'selsync_jax', 'meet', *here, *flags)
    return point, point.stdout.readline().strip()

  return meet
