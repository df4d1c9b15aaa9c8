"""The emulated cluster of the benchmarks."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests.support import emulated, live_runs


def commands():
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    with contextlib.suppress(OSError):  # The process has just ended.
      yield path.read_bytes().split(b'\0')


def test_nothing_is_left_of_an_emulated_cluster_that_is_killed():
  if reason := emulated.missing():
    pytest.skip(reason)
  seconds = str(10**6 + os.getpid())
  cluster = subprocess.Popen(
    [*(*emulated.COMMAND, '--hosts=2', '--', 'sleep', seconds)],
    cwd=live_runs.ROOT,
  )

  def hosts():
    return list(commands()).count([b'sleep', seconds.encode(), b''])

  while hosts() < 2:
    assert cluster.poll() is None
    time.sleep(0.05)
  cluster.kill()
  cluster.wait()
  deadline = time.monotonic() + 30
  while hosts():
    assert time.monotonic() < deadline
    time.sleep(0.05)


def test_an_emulated_cluster_has_hosts_that_find_each_other_by_name():
  if reason := emulated.missing():
    pytest.skip(reason)
  code = (
    'import socket; name = socket.gethostname(); '
    'print(name, socket.gethostbyname(name), socket.gethostbyname("host0"))'
  )
  before = pathlib.Path('/proc/net/dev').read_text().count(':')
  output = live_runs.finish(
    [
      *(*emulated.COMMAND, '--hosts=2', '--bandwidth=50mbit', '--'),
      *(sys.executable, '-c', code),
    ]
  )
  assert output.splitlines() == [
    f'[host{i}] host{i} 10.77.0.{i + 1} 10.77.0.1' for i in (0, 1)
  ]
  assert pathlib.Path('/proc/net/dev').read_text().count(':') == before
