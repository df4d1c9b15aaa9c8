"""Islands as processes of `selsync train`, of which some are killed."""

import json
import os
import pathlib
import signal
import sys
import time

import pytest

from selsync_jax.islands import journal, rounds
from tests.support import live_runs
from tests.support.distance import distant
from tests.support.session import make_once

LATE = '--config.sync.delay=3', '--config.sync.delta=0.3'
PACED = 'tests/support/slow_digits.py'  # Dozens of steps while one starts.
_SLOW = pytest.mark.slow


@pytest.fixture
def paced(monkeypatch):
  """Makes steps of `PACED` slow, so that the others advance only a few."""
  monkeypatch.setenv('STEP_PAUSE', '0.1')


def _train(method, workdir, *flags, islands=2):
  """An island that trains, at its `PACED` steps, until it is stopped."""
  workers, endless = f'--config.workers={islands}', '--config.steps=100000'
  return live_runs.command(
    method, 1, workdir, workers, endless, *flags, config=PACED
  )


def _run(workdir, islands=2, *flags):
  workers = f'--config.workers={islands}'
  train = live_runs.command('selsync', 1, workdir, workers, *LATE)
  return [*live_runs.LAUNCH, f'--islands={islands}', *flags, '--', *train]


def _repeat(workdir, *flags):
  """Repeats a run; returns how many digests of each island were compared."""
  replay = sys.executable, '-m', 'selsync_jax', 'replay', workdir, *flags
  lines = live_runs.finish(['env', 'STEP_PAUSE=0', *replay]).splitlines()
  assert all(line.endswith(' digests, all equal') for line in lines)
  return [int(line.split()[1]) for line in lines]


@pytest.fixture
def undisturbed():
  """The folder of a run of two islands that nothing has disturbed."""

  def run(folder):
    live_runs.finish([*_run(folder), '--nospeculate'])

  return make_once('islands', run)


def _island(launcher, name):
  """The process of an island that a launcher has started."""
  for pid in live_runs.trainers(launcher):
    environment = pathlib.Path(f'/proc/{pid}/environ').read_bytes()
    if f'SELSYNC_ISLAND={name}'.encode() in environment.split(b'\0'):
      return pid
  raise LookupError(name)


@_SLOW
def test_a_run_of_islands_that_are_stopped_and_killed_ends_as_another(
  undisturbed, tmp_path
):
  parted = tmp_path / 'parted'
  gone = 'island island1 is gone; last good checkpoint'
  for number, step, codes, line in [
    (signal.SIGTERM, 20, [75], 'stopped by a signal after step'),
    (signal.SIGKILL, 50, [1, 137], gone),  # Depends on the order.
  ]:
    child = live_runs.start(_run(parted))
    live_runs.wait_for_rows(parted / 'island0', step, child)
    os.kill(_island(child, 'island1'), number)
    found, lines = live_runs.outcome(child)
    assert found in codes, lines
    assert any(line in said for said in lines), lines
  live_runs.finish(_run(parted))
  for name in ('island0', 'island1'):
    assert not live_runs.differences(undisturbed / name, parted / name)
  averages = sum(row['synced'] for row in live_runs.rows(parted / 'island0'))
  assert 5 < averages <= min(_repeat(parted))


def _wait_for_guesses(invitation):
  """Returns when all islands have reported votes that they did not wait for."""
  status = sys.executable, '-m', 'selsync_jax', 'status', invitation, '--json'
  for _ in range(60):
    islands = json.loads(live_runs.finish(status))['islands']
    if min(island.get('guesses', 0) for island in islands) > 0:
      return
    time.sleep(0.5)
  raise AssertionError(islands)


@_SLOW
def test_islands_that_begin_steps_during_votes_end_as_islands_that_wait(
  meet, undisturbed, tmp_path
):
  """A vote takes 0.1 s; one of them is killed, and both resume."""
  names = 'island0', 'island1'
  train = live_runs.command('selsync', 1, tmp_path, '--config.workers=2')
  _, invitation = meet('--islands=2')
  with distant(invitation, 0.05) as far:
    flags = [*LATE, f'--join={far}', '--cluster_timeout=12']

    def run():
      return [
        live_runs.start([*train, *flags, f'--island={name}']) for name in names
      ]

    islands = run()
    live_runs.wait_for_rows(tmp_path / 'island0', 10, *islands)
    _wait_for_guesses(invitation)
    live_runs.wait_for_rows(tmp_path / 'island0', 50, *islands)
    islands[1].kill()
    for island in islands:
      assert live_runs.outcome(island)[0] != 0
    for island in run():
      code, lines = live_runs.outcome(island)
      assert code == 0, lines
  for name in names:
    assert not live_runs.differences(undisturbed / name, tmp_path / name)


@_SLOW
@pytest.mark.usefixtures('paced')
def test_islands_that_begin_steps_during_votes_are_killed_and_rejoin(
  meet, tmp_path
):
  _, invitation = meet('--islands=2', '--minimum=1')
  with distant(invitation, 0.05) as far:
    train = _train('selsync', tmp_path, '--config.sync.delta=0.3')
    one, other = (
      [*train, f'--join={far}', f'--island={name}'] for name in ('maui', 'oahu')
    )
    first, second = live_runs.start(one), live_runs.start(other)
    live_runs.wait_for_rows(tmp_path / 'maui', 40, first, second)
    _wait_for_guesses(invitation)
    second.kill()
    live_runs.outcome(second)
    second = live_runs.start(other)
    for line in second.stdout:
      if line.startswith('resuming from step '):
        break
    at = int(line.split()[-1])
    assert at > 40
    live_runs.wait_for_rows(tmp_path / 'oahu', at + 40, first, second)
    _wait_for_guesses(invitation)
    for island in first, second:
      island.send_signal(signal.SIGTERM)
    for code, lines in map(live_runs.outcome, (first, second)):
      assert code == 75, lines
  assert min(_repeat(tmp_path, f'--config={PACED}')) > 5


@_SLOW
def test_a_coordinator_that_is_killed_and_started_again_changes_nothing(
  start, undisturbed, tmp_path
):
  parted = tmp_path / 'parted'
  meet = (
    *('-m', 'selsync_jax', 'meet', '--islands=2', '--host=127.0.0.1'),
    *(f'--port={live_runs.free_port()}', f'--keep={tmp_path}/point.json'),
  )
  point = start(*meet)
  invitation = point.stdout.readline().strip()
  train = live_runs.command('selsync', 1, parted, '--config.workers=2')
  train += [*LATE, f'--join={invitation}']
  names = 'island0', 'island1'
  islands = [live_runs.start([*train, f'--island={name}']) for name in names]
  for step in 20, 50:
    live_runs.wait_for_rows(parted / 'island0', step, *islands)
    point.kill()
    point.wait()
    point = start(*meet)
    assert point.stdout.readline().strip() == invitation
  for island in islands:
    code, lines = live_runs.outcome(island)
    assert code == 0, lines
  for name in names:
    assert not live_runs.differences(undisturbed / name, parted / name)


@_SLOW
@pytest.mark.usefixtures('paced')
def test_one_that_is_killed_comes_again_while_the_others_train(tmp_path):
  log = tmp_path / 'log'
  launch = *live_runs.LAUNCH, '--islands=2', '--minimum=1', f'--log={log}'
  train = _train('selsync', tmp_path, *LATE)
  others = live_runs.start([*launch, '--', *train])
  live_runs.wait_for_rows(tmp_path / 'island0', 20, others)
  victim = pathlib.Path('/proc', f'{_island(others, "island1")}')
  command, environment = (
    (victim / name).read_text().rstrip('\0').split('\0')
    for name in ('cmdline', 'environ')
  )
  os.kill(int(victim.name), signal.SIGKILL)
  environment.append('JAX_LOG_COMPILES=1')
  again = live_runs.start(['env', '-i', *environment, *command])
  before = []
  for line in again.stdout:
    before.append(line)
    if line.startswith('resuming from step '):
      break
  at = int(line.split()[-1])
  assert at > 20
  live_runs.wait_for_rows(tmp_path / 'island1', at + 30, others, again)
  for child in others, again:
    child.send_signal(signal.SIGTERM)
  (code, lines), (alone, last) = map(live_runs.outcome, (others, again))
  assert (code, alone) == (75, 75), lines
  assert any('island1 was killed by SIGKILL' in line for line in lines)
  kinds = [event.kind for event in journal.read(log)]
  assert kinds[:5] == ['joined'] * 2 + ['ended', 'returned', 'admitted']
  row = live_runs.rows(tmp_path / 'island0')[-1]
  assert row['samples'] < 2 * 32 * row['step']  # None of an absent island.
  compiles = ['Finished XLA compilation' in text for text in before]
  assert any(compiles) and not any('XLA compilation' in text for text in last)
  assert min(_repeat(tmp_path, f'--config={PACED}')) > 5


@_SLOW
@pytest.mark.usefixtures('paced')
def test_a_run_of_two_becomes_one_of_three_and_of_two_again(meet, tmp_path):
  """One joins late, and another hands over its work and leaves."""
  members = '--islands=3', '--minimum=2', '--timeout=6'

  def train(name, invitation, *more):
    flags = f'--join={invitation}', f'--island={name}', *more
    return live_runs.start(_train('local_sgd', tmp_path, *flags, islands=3))

  def rows(name):
    return live_runs.rows(tmp_path / name)

  _, invitation = meet(*members)
  first = [train(name, invitation) for name in ('maui', 'oahu')]
  live_runs.wait_for_rows(tmp_path / 'oahu', 20, *first)
  late = train('hawaii', invitation)  # Before the others by name.
  for line in late.stdout:
    if line.startswith('resuming from step '):
      break
  at = int(line.split()[-1])
  live_runs.wait_for_rows(tmp_path / 'hawaii', at + 30, *first, late)
  first[0].send_signal(signal.SIGTERM)
  code, lines = live_runs.outcome(first[0])
  assert code == 75, lines
  assert 'left after a signal' in lines[-1] and rows('maui')[-1]['synced']
  last = rows('maui')[-1]['step']
  live_runs.wait_for_rows(tmp_path / 'hawaii', last + 30, first[1], late)
  late.send_signal(signal.SIGTERM)  # None may leave: all stop.
  for code, lines in map(live_runs.outcome, (first[1], late)):
    assert code == 75, lines
  stopped = rows('oahu')[-1]['step']
  assert stopped == rows('hawaii')[-1]['step'] > last + 30
  assert len(_repeat(tmp_path, f'--config={PACED}')) == 3
  (_, invitation), end = meet(*members), f'--config.steps={stopped + 20}'
  again = [train(name, invitation, end) for name in ('oahu', 'hawaii')]
  for code, lines in map(live_runs.outcome, again):
    assert code == 0 and f'resuming from step {stopped}' in lines, lines
  *_, row = rounds.read(tmp_path / 'oahu').values()
  assert row['members'] == ['oahu', 'hawaii'], 'the workers that they have been'


@_SLOW
@pytest.mark.usefixtures('paced')
def test_an_island_of_several_processes_comes_and_goes_as_one(meet, tmp_path):
  _, invitation = meet('--islands=2', '--minimum=1')
  mesh = '--config.mapper=mesh', '--config.mesh.fsdp=2'
  flags = *LATE, *mesh, '--config.sync.wire=int4', f'--join={invitation}'
  train = _train('selsync', tmp_path, *flags)
  several = *live_runs.LAUNCH, '--processes=2', '--', *train, '--island=oahu'
  single = 'env', 'JAX_NUM_CPU_DEVICES=2', *train, '--island=maui'
  one, other = map(live_runs.start, (single, several))
  live_runs.wait_for_rows(tmp_path / 'maui', 20, one, other)
  os.kill(live_runs.trainers(other)[1], signal.SIGKILL)
  code, lines = live_runs.outcome(other)
  assert code, lines
  again = live_runs.start(several)
  for line in again.stdout:
    if 'resuming from step ' in line:
      break
  at = int(line.split()[-1])
  assert at > 20
  live_runs.wait_for_rows(tmp_path / 'oahu', at + 30, one, again)
  for child, process in (again, live_runs.trainers(again)[1]), (one, one.pid):
    os.kill(process, signal.SIGTERM)
    code, lines = live_runs.outcome(child)
    assert code == 75, lines
  assert min(_repeat(tmp_path, f'--config={PACED}')) > 5


@_SLOW
@pytest.mark.usefixtures('paced')
def test_one_that_was_frozen_for_long_comes_again_by_itself(tmp_path):
  launch = *live_runs.LAUNCH, '--islands=2', '--minimum=1', '--'
  flags = *LATE, '--cluster_timeout=2', '--restart'
  child = live_runs.start([*launch, *_train('selsync', tmp_path, *flags)])
  live_runs.wait_for_rows(tmp_path / 'island0', 20, child)
  frozen = _island(child, 'island1')
  os.kill(frozen, signal.SIGSTOP)
  taken = len(live_runs.rows(tmp_path / 'island1'))
  live_runs.wait_for_rows(tmp_path / 'island0', taken + 30, child)
  os.kill(frozen, signal.SIGCONT)
  live_runs.wait_for_rows(tmp_path / 'island1', taken + 30, child)
  assert _island(child, 'island1') == frozen
  child.send_signal(signal.SIGTERM)
  code, lines = live_runs.outcome(child)
  assert code == 75, lines
  said = [line for line in lines if line.endswith('; starts again')]
  (line,) = said
  assert 'has not answered for 2 s; last good checkpoint: step ' in line
  assert not (tmp_path / 'island1.1').exists()
  _repeat(tmp_path, f'--config={PACED}')
