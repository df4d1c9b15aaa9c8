"""A coordinator's status of its islands, and access to it."""

from concurrent import futures
import json
import threading
import time
import urllib.request

import numpy as np
from prometheus_client import parser
import pytest

from selsync_jax.__main__ import run_command
from selsync_jax.islands import journal, metrics
from selsync_jax.islands.program import complete
from tests.support.meetings import met

N, LENGTH, STEP = 3, 1000, 7


@pytest.fixture
def run(tmp_path):
  """A coordinator; a function to join it; and threads for the islands."""
  served = {'minimum': 2, 'log': tmp_path / 'log', 'timeout': 4.0}
  with (
    met((), N, **served) as (point, _, join),
    futures.ThreadPoolExecutor(N) as pool,
  ):
    yield point, join, pool


@pytest.fixture
def show(run, capsys):
  """The output of `selsync status` with some flags."""
  point, _, _ = run

  def show(*flags):
    run_command(['status', str(point.invitation), *flags])
    return capsys.readouterr().out

  return show


def when(show, holds):
  """Waits until a condition on the islands holds; returns the status."""
  deadline = time.monotonic() + 20
  while time.monotonic() < deadline:
    found = json.loads(show('--json'))
    each = {row.pop('name'): row for row in found['islands']}
    if holds(each):
      return found, each
    time.sleep(0.05)
  raise AssertionError(found)


def told(each):
  """Whether all training islands have reported their steps."""
  rows = [row for row in each.values() if row['state'] == 'trains']
  return rows and all(row['step'] >= STEP for row in rows)


def train(pool, islands):
  """The islands send each other a message, and take unequally many steps."""

  def step(peers):
    peers.exchange([np.zeros(LENGTH, np.float32)] * peers.size)
    peers.averaged()
    peers.reach(STEP + peers.index)

  futures.wait(pool.submit(step, peers) for peers in islands)


def admit(pool, islands, late):
  """Admits an island that rejoins."""

  def step(peers):
    peers.reach(STEP + N)  # All islands meet after the same step.
    while not peers.admits:
      complete(peers, lambda peers: peers.share(np.zeros(0)))
    peers.admit()

  entered = pool.submit(late.enter)
  futures.wait([entered, *(pool.submit(step, peers) for peers in islands)])


def test_it_shows_each_island_from_its_first_to_its_last_sign_of_life(
  run, show, tmp_path
):
  _, join, pool = run
  first = pool.submit(join, 'a')
  found, each = when(show, lambda each: each)
  assert each['a']['state'] == 'waits' and found['mean_participation'] is None
  rest = [pool.submit(join, name) for name in 'bc']
  islands = [each.result() for each in (first, *rest)]
  train(pool, islands)
  found, each = when(show, told)
  sent = (N - 1) * 4 * LENGTH
  for row, step in zip(each.values(), range(STEP, STEP + N), strict=True):
    assert row['step'] == step and row['silent_seconds'] <= 2
    assert row['sent_bytes'] == row['received_bytes'] == sent
    assert 0 < row['sent_bytes_per_second'] < sent * 100
  assert (found['present'], found['participation']) == (N, 1)
  assert found['step_spread'] == N - 1 and found['mean_participation'] == 1
  islands[1].fail()
  found, each = when(show, lambda each: each['b']['state'] == 'away')
  assert '\n1 averages, 0 aborts\n' in show()
  assert each['b'] == {'state': 'away', 'why': 'has failed'}
  assert found['participation'] == 2 / 3 and found['generation'] == 2
  assert 'b       has failed\n' in show()
  b = join('b')
  _, each = when(show, lambda each: each['b']['state'] == 'prepares')
  admit(pool, islands[::2], b)
  _, each = when(show, lambda each: each['a'].get('aborts') == 1)
  islands[0].guessed(is_right=False)
  when(show, lambda each: each['a'].get('mistakes') == 1)
  line = '1 aborts, 1 votes not waited for, 1 steps repeated\n'
  assert line in show()
  found, each = when(show, lambda each: each)
  assert each['b']['state'] == 'trains' and found['generation'] == 3
  assert (found['admitted'], found['ended'], found['left']) == (1, 1, 0)
  assert 2 / 3 < found['mean_participation'] < 1
  others = [islands[0], b, islands[2]]
  futures.wait(pool.submit(peers.close) for peers in others)
  found, each = when(show, lambda each: each['c']['state'] == 'away')
  assert (found['present'], found['left']) == (0, 0)
  events = journal.read(tmp_path / 'log')
  kinds = ['joined'] * N + ['ended', 'returned', 'admitted'] + ['finished'] * N
  assert [event.kind for event in events] == kinds
  present = [len(event.present) for event in events]
  assert present == [0, 0, N, 2, 2, N, 0, 0, 0]


def test_the_table_and_the_metrics_say_the_same(run, show):
  point, join, pool = run
  islands = [*pool.map(join, ('island0', 'island1', 'a "b"\\c'))]
  train(pool, islands)
  found, each = when(show, told)
  text = show()
  assert max(map(len, text.splitlines())) <= 60
  rows = [line.rsplit(maxsplit=7) for line in text.splitlines()[-N:]]
  assert {name: int(step) for name, step, *_ in rows} == {
    name: row['step'] for name, row in each.items()
  }
  address = metrics.serve(point.status, '127.0.0.1', 0)
  with urllib.request.urlopen(address) as answer:
    families = [*parser.text_fd_to_metric_families(map(bytes.decode, answer))]
  samples = {
    (sample.name, sample.labels.get('island')): sample.value
    for family in families
    for sample in family.samples
  }
  assert samples['selsync_islands', None] == found['present'] == N
  assert samples['selsync_islands_ended_total', None] == 0
  for name, row in each.items():
    assert samples['selsync_island_step', name] == row['step']
    assert samples['selsync_island_averages_total', name] == 1
    sent = samples['selsync_island_sent_bytes_total', name]
    assert sent == row['sent_bytes'] > 0


def test_a_terminal_that_is_paused_holds_nobody_up(pool):
  goes_on = threading.Event()

  def say(line):
    assert goes_on.wait(60)

  with met('ab', say=say) as (_, islands, _):
    shares = [pool.submit(peers.share, np.ones(1)) for peers in islands]
    assert [np.sum(each.result(timeout=20)) for each in shares] == [2, 2]
    goes_on.set()


def test_the_address_alone_is_not_enough(run, monkeypatch, refused):
  address, token, print_ = str(run[0].invitation).split('/')
  for wrong, line in (
    (address, 'is not an invitation: HOST:PORT/TOKEN/FINGERPRINT'),
    (f'{address}/no{token}/{print_}', 'rejects the token of the invitation'),
  ):
    monkeypatch.setenv('SELSYNC_INVITATION', wrong)
    assert line in refused('status', code=1)
  monkeypatch.delenv('SELSYNC_INVITATION')
  assert refused('status') == 'status: needs one INVITATION, got 0'
