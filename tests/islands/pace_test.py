"""Islands that keep their own pace."""

from concurrent import futures
from fractions import Fraction

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from selsync_jax.config import ConfigError
from selsync_jax.data import pace
from selsync_jax.data.course import Course
from selsync_jax.data.pace import WHOLE
from selsync_jax.islands import behind, rounds
from selsync_jax.islands.board import Board
from selsync_jax.islands.replay import replay
from selsync_jax.runs import checkpoints
from selsync_jax.simulate.run import simulate
from selsync_jax.training.train import train_and_evaluate
from tests.support import island_runs, live_runs, short_runs
from tests.support.lines import raises

N = 2


@hypothesis.given(
  st.lists(st.floats(0.001, 10), min_size=1, max_size=5), st.integers(1, 300)
)
def test_all_need_equally_long_and_the_fastest_never_rests(seconds, steps):
  own = Course(len(seconds), is_free=True)
  own.plan(dict(enumerate(seconds)))
  slots = range(len(seconds))
  taken = [0 for _ in slots]
  for _ in range(steps):
    kept, own = own.to_json(), Course(len(seconds), is_free=True)
    own.begin(0, kept)  # As after a kill.
    own.next(slots)
    for slot in slots:
      taken[slot] += slot not in own.rest
  assert taken[int(np.argmin(seconds))] == steps
  for slot, share in enumerate(own.shares):
    most = max(own.shares)
    each = Fraction(share * WHOLE // most, WHOLE)
    assert taken[slot] == int(each * steps + 1 - Fraction(share, WHOLE))
    if share > 50:  # To rounding by a thousandth.
      assert share / WHOLE * seconds[slot] == pytest.approx(
        min(seconds), rel=0.02
      )


def test_all_take_the_step_after_an_average_who_was_away_too():
  own = Course(3, is_free=True)
  own.plan({0: 1.0, 1: 1.0, 2: 2.0})
  for rest in (set(), {2}, set()):
    own.next(range(3))
    assert own.rest == rest
  own.plan({0: 1.0, 1: 1.0})
  own.next(range(3))
  assert not own.rest


@pytest.fixture
def train(tmp_path, one_saves_at_a_time, monkeypatch):
  """Trains islands in threads, one of which needs twice as long for a step."""
  added = [[] for _ in range(N)]

  def time_steps(i, islands):
    islands.watch.add = added[i].append
    monkeypatch.setattr(islands.watch, '_seconds', [1.0 + i])

  def train(**fields):
    config = short_runs.config(
      'local_sgd', workers=N, pace='free', mapper='auto', **fields
    )
    found = island_runs.train(tmp_path, lambda i: config, N, time_steps)
    # No step that synchronizes or rests is timed.
    assert len(added[0]) > len(added[1]) > 0
    return found

  return train


LATE = {'sync__delay': {'steps': 3, 'keep': 0.5, 'extrapolate': 0.5}}


@pytest.mark.slow
@pytest.mark.parametrize('fields', [{}, LATE])
def test_the_slower_one_rests_in_every_second_step(fields, train, tmp_path):
  period, steps = 4, short_runs.STEPS
  each = train(sync__period=period, **fields)
  assert each[0]['test_loss'] == each[1]['test_loss']
  rows = short_runs.rows(tmp_path / '0')
  assert [row['synced'] for row in rows] == [
    step % period == 0 for step in range(1, steps + 1)
  ]
  # No island rests before or right after the first average.
  first = period + (3 if fields else 0)
  read = checkpoints.peek_record(tmp_path / '0')['leases']['read']
  assert read == [steps, first + (steps - first + 1) // 2]
  for row in rows:
    rests = row['step'] > first and (row['step'] - first) % 2 == 0
    assert np.isnan(row['relative_changes'][1]) == rests
    assert np.isfinite(row['relative_changes'][0]) or row['step'] == 1
  ends = [live_runs.arrays(tmp_path / f'{i}', steps) for i in range(N)]
  for (name, left), (_, right) in zip(*ends, strict=True):
    if name.startswith("['params']") and not fields:
      np.testing.assert_array_equal(left, right, err_msg=name)
  compared = replay(tmp_path)
  assert compared['0'] == len(rounds.read(tmp_path / '0')) > 0


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_at_its_pace(train, tmp_path):
  train(sync__period=4)
  whole = [
    live_runs.arrays(tmp_path / f'{i}', short_runs.STEPS) for i in (0, 1)
  ]
  for i in range(N):
    live_runs.go_back(tmp_path / f'{i}', 8)
  train(sync__period=4)
  for i in range(N):
    again = live_runs.arrays(tmp_path / f'{i}', short_runs.STEPS)
    for (name, left), (_, right) in zip(whole[i], again, strict=True):
      np.testing.assert_array_equal(left, right, err_msg=name)


@pytest.mark.parametrize(
  'method, why',
  [
    ('selsync', 'trigger selsync(1.0) votes; it needs a trigger'),
    ('bsp', 'reducer all_reduce() changes gradients; it needs a trigger'),
  ],
)
def test_what_waits_at_every_step_is_refused(method, why, tmp_path):
  config = short_runs.config(method, workers=1, pace='free')
  with raises(ConfigError, f"config.pace='free': {why}..."):
    island_runs.train(tmp_path, lambda i: config, 1)


def test_what_needs_to_know_the_link_is_for_islands(tmp_path):
  config = short_runs.config(
    'selsync',
    sync__link_share=0.5,
    sync__delay={'steps': 2},
    sync__delta=None,
  )
  line = 'sync.link_share: is for islands'
  with pytest.raises(ConfigError, match=line):
    train_and_evaluate(config, tmp_path)


def test_the_slowest_says_in_how_many_steps_an_average_travels():
  board = Board(N)

  def travel(i, averages):
    watches = pace.Watch(), pace.Watch()
    times = [1.0 + i] * 3, averages
    for watch, seconds in zip(watches, times, strict=True):
      for each in [60.0, *seconds]:  # The first one compiles.
        watch.add(each)
    return behind.steps_of_travel(board.peers(i), *watches)

  for averages, steps in [((), None), ((5.0, 6.0, 7.0), 3.0)]:
    board = Board(N)
    with futures.ThreadPoolExecutor(N) as pool:
      found = pool.map(travel, range(N), [(2.0,), averages])
    assert [*found] == [steps] * N


@pytest.mark.slow
def test_a_budget_follows_the_link_and_replay_repeats_it(
  tmp_path, one_saves_at_a_time
):
  fields = {'sync__delta': None, 'sync__link_share': 0.5}
  fields |= {'sync__delay': {'steps': 2}, 'workers': N, 'mapper': 'auto'}
  config = short_runs.config('selsync', **fields)
  assert len(island_runs.train(tmp_path, lambda i: config, N)) == N
  compared = replay(tmp_path)
  one, other = (rounds.read(tmp_path / f'{i}') for i in range(N))
  told = [row['travel'] for row in one.values()]
  assert told == [row['travel'] for row in other.values()]
  assert told[-1] > 0
  assert compared['0'] == len(one)


@pytest.mark.parametrize('command', [train_and_evaluate, simulate])
def test_workers_of_one_program_have_one_pace(command, tmp_path):
  """The error precedes any other work, such as reading checkpoints."""
  old = tmp_path / checkpoints.FOLDER / '1'
  (old / checkpoints.RECORD).parent.mkdir(parents=True)
  (old / checkpoints.RECORD).write_text('{"format": 1}')
  checkpoints.write_manifest(old)
  config = short_runs.config('local_sgd', pace='free')
  config.virtual_cluster.update(compute='constant', step_seconds=1.0)
  line = "pace='free': is for islands; use selsync launch --islands"
  with pytest.raises(ConfigError, match=line):
    command(config, tmp_path)


def test_a_plan_takes_no_island_out():
  assert pace.plan([1e-9, 1e9]) == [WHOLE, 1]
