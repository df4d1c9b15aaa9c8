"""Fixtures of islands that are threads of one process."""

from concurrent import futures
import queue
import threading

import pytest

from selsync_jax.runs.checkpoints import Checkpoints


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
