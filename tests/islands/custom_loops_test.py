"""Custom loops on islands, as processes, of which some are killed."""

import re
import signal
import sys
import time

import numpy as np
import pytest

from tests.support import live_runs
from tests.support.session import ROOT

RECIPE = ROOT / 'docs' / 'recipes' / 'island.py'
WIDE = ROOT / 'tests' / 'support' / 'wide_island.py'
RETURNING = ROOT / 'tests' / 'support' / 'returning_loop.py'
_SLOW = pytest.mark.slow


@_SLOW
def test_the_recipe_trains_on_two_islands(start, meet, tmp_path, monkeypatch):
  point, invitation = meet('--islands=2')
  monkeypatch.setenv('SELSYNC_INVITATION', invitation)
  islands = [start(RECIPE, name, tmp_path) for name in ('maui', 'oahu')]
  outputs = [island.communicate(timeout=120)[0] for island in islands]
  assert [island.returncode for island in islands] == [0, 0], outputs
  losses = [re.findall(r'loss (\S+)', text) for text in outputs]
  assert all(float(loss[-1]) < float(loss[0]) for loss in losses)
  point.send_signal(signal.SIGTERM)
  *said, last = point.communicate(timeout=30)[0].splitlines()
  said = [line.split(maxsplit=1)[1] for line in said]  # After the time.
  assert [line.split(' from ')[0] for line in said[:2]] in (
    ['maui has joined', 'oahu has joined'],
    ['oahu has joined', 'maui has joined'],
  )
  assert sorted(said[2:]) == ['maui has left', 'oahu has left']
  assert last == 'meet: stopped by SIGTERM'


@_SLOW
def test_an_own_loop_of_several_processes_is_as_one_of_several_devices(
  start, meet, monkeypatch
):
  """Up to one int8 rounding step: the speaking process uses one device."""

  def ends(devices, *launch):
    """Returns the final parameters of each island's processes."""
    monkeypatch.setenv('JAX_NUM_CPU_DEVICES', f'{devices}')
    _, given = meet('--islands=2')
    islands = [start(*launch, WIDE, given, name) for name in ('maui', 'oahu')]
    outputs = [island.communicate(timeout=120)[0] for island in islands]
    return [re.findall(r'has (\w+ \w+)', text) for text in outputs]

  launch = *live_runs.LAUNCH[1:], '--processes=2', '--', sys.executable
  (one,), (other,) = ends(2)
  first, second = ends(1, *launch)
  for alone, (each, same) in ((one, first), (other, second)):
    assert each == same
    given, expected = (
      np.concatenate([np.frombuffer(bytes.fromhex(x), 'f4') for x in own])
      for own in (each.split(), alone.split())
    )
    np.testing.assert_allclose(given, expected, atol=0.02)
  assert one != other


@pytest.fixture
def loops(start, meet, tmp_path, monkeypatch):
  """Starts islands of a custom loop, with a coordinator of their own."""
  monkeypatch.setenv('STEP_PAUSE', '0.05')

  def loops(names, steps, folder='parted'):
    _, given = meet(f'--islands={len(names)}', '--minimum=1')
    (tmp_path / folder).mkdir(exist_ok=True)

    def loop(name):
      return start(RETURNING, given, name, tmp_path / folder, steps)

    return loop, [*map(loop, names)]

  return loops


def _log(folder, name):
  """The log of a custom loop since its last start."""
  path = folder / f'{name}.log'
  lines = path.read_text().splitlines() if path.exists() else []
  rows = [line.split() for line in lines if line.count(' ') == 2]
  begins = [i for i, row in enumerate(rows) if row[0] == 'begins']
  return {row[0]: row[1:] for row in rows[begins[-1] + 1 if begins else 0 :]}


def _until(found, *children):
  """Waits until custom loops have logged something."""
  while not found():
    codes = [child.poll() for child in children]
    assert not any(codes), [c.stdout.read() for c in children if c.poll()]
    time.sleep(0.1)


@_SLOW
def test_a_custom_loop_that_is_killed_comes_again_as_another_one(
  loops, tmp_path
):
  folder = tmp_path / 'parted'
  loop, (one, other, victim) = loops('abc', 100000)
  _until(lambda: '35' in _log(folder, 'c'), one, other, victim)
  victim.kill()
  victim.wait()
  before = (folder / 'c.log').read_text().count('begins')
  again = loop('c')
  _until(
    lambda: (folder / 'c.log').read_text().count('begins') > before,
    *(one, other, again),
  )

  def equal():
    """Steps after which the others have equal parameters, after an average."""
    c, a, b = (_log(folder, name) for name in 'cab')
    later = [step for step in [*c][1:] if step in a and step in b]
    return [step for step in later if a[step][1] == b[step][1]]

  _until(lambda: len(equal()) > 2, one, other, again)
  for child in one, other, again:
    child.kill()
    child.wait()
  a, c = _log(folder, 'a'), _log(folder, 'c')
  at = next(iter(c))
  assert int(at) > 35
  assert c[at] == a[at]
  assert all(c[step][1] == a[step][1] for step in equal())


@_SLOW
def test_custom_loops_that_are_all_killed_end_as_undisturbed_ones(
  loops, tmp_path
):
  parted, whole = tmp_path / 'parted', tmp_path / 'whole'
  _, undisturbed = loops('ab', 60, 'whole')
  assert [child.wait() for child in undisturbed] == [0, 0]
  _, first = loops('ab', 60)
  _until(lambda: '35' in _log(parted, 'a'), *first)
  for child in first:
    child.kill()
    child.wait()
  _, again = loops('ab', 60)
  assert [child.wait() for child in again] == [0, 0]
  for name in 'ab':
    rows = _log(parted, name)
    assert next(iter(rows)) == '30'
    expected = _log(whole, name)
    assert rows == {step: expected[step] for step in rows}
