"""Steps that begin while a vote is on its way leave no trace."""

from concurrent import futures
import functools
import gc

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.islands import ahead, rounds
from selsync_jax.islands.board import Board
from selsync_jax.islands.mapper import IslandMapper
from tests.support import island_runs, live_runs, short_runs

N, STEPS = 3, 40


def step(state, batch):
  """A step with dropout, two votes, and an average at every seventh step."""
  w, count = state
  key = jax.random.fold_in(jax.random.key(0), count)
  key = jax.random.fold_in(key, lax.axis_index(ss.AXIS))
  kept = jax.random.bernoulli(key, 0.9, w.shape)
  w -= 0.1 * jnp.where(kept, jnp.sin(w - batch), 0)
  for limit in 2.2, 2.4:
    asked = lax.psum(jnp.int32(jnp.max(batch) > limit), ss.AXIS)
    w = lax.cond(asked > 0, lambda w: lax.pmean(w, ss.AXIS), lambda w: w, w)
  always = count % 7 == 6
  w = lax.cond(always, lambda w: lax.pmean(w, ss.AXIS), lambda w: w, w)
  return (w, count + 1), {'asked': asked, 'w': w[0]}


@pytest.fixture
def dares(monkeypatch):
  """Makes every island guess whenever it may."""
  monkeypatch.setattr(ahead.Odds, 'are_good', True)


@pytest.mark.usefixtures('dares')
def test_the_bits_are_those_of_steps_that_wait():
  data = np.random.default_rng(0).normal(size=(STEPS, N, 1, 6))
  guessed = [[] for _ in range(N)]

  def island(i, board, looks_ahead):
    peers, batches = board.peers(i), [*data[:, i].astype(np.float32)]
    peers.guessed = guessed[i].append
    mapper, taken = IslandMapper(N, peers), []

    def upcoming():  # Sometimes unknown.
      left = batches[len(taken) + 1 :]
      return left[0] if left and len(taken) % 5 else None

    take = mapper.map_workers(step)
    if looks_ahead:
      take = ahead.Ahead(mapper, step, upcoming)
    state = mapper.stack((jnp.ones(6), jnp.int32(0)))
    for batch in batches:
      state, metrics = take(state, batch)
      taken.append(jax.device_get((state, metrics)))
    return taken

  def train(looks_ahead):
    board = Board(N)
    with futures.ThreadPoolExecutor(N) as pool:
      return [*pool.map(island, range(N), [board] * N, [looks_ahead] * N)]

  jax.tree.map(np.testing.assert_array_equal, train(False), train(True))
  assert all({*each} == {True, False} for each in guessed)


def _large(state, batch):
  """A step whose state and gradient have 4 MiB each."""
  grads = jnp.sin(state - batch)
  asked = lax.psum(jnp.int32(grads[0] > 2), ss.AXIS)
  return state - 0.1 * grads, asked


def _live():
  gc.collect()
  return sum(x.nbytes for x in jax.live_arrays()) >> 22


@pytest.mark.usefixtures('dares')
@pytest.mark.parametrize('looks_ahead, most', [(False, 2), (True, 4)])
def test_a_vote_on_its_way_needs_one_more_state_and_gradient(looks_ahead, most):
  peers, live, before = Board(1).peers(0), [], _live()
  fold, batch = peers.fold, np.ones(1, np.float32)

  def vote(*message):
    live.append(_live())
    return fold(*message)

  peers.fold, mapper = vote, IslandMapper(1, peers)
  take = mapper.map_workers(_large)
  if looks_ahead:
    take = ahead.Ahead(mapper, _large, lambda: batch)
    peers.fold, peers.guessed = fold, lambda is_right: live.append(_live())
  state = mapper.stack(jnp.zeros(1 << 20))
  for _ in range(4):
    state, _ = take(state, batch)
  assert max(live) - before == most


@pytest.mark.parametrize('wrong, guesses', [(0, True), (2, True), (6, False)])
def test_it_guesses_while_repeats_cost_less_than_round_trips(
  wrong, guesses, monkeypatch
):
  """Steps of a second, trips of 50 ms, and that many of 100 guesses are wrong.

  Half of the second passes between the calls of a step. Most votes have also
  waited for a slower island, which counts neither as a step nor as a trip.
  """
  now = 0.0
  monkeypatch.setattr(ahead.time, 'perf_counter', lambda: now)
  odds = ahead.Odds()

  def vote():
    nonlocal now
    now += 0.05 if index % 9 == 0 else 0.8
    return np.array([0])

  for index in range(200):  # The first 100 no longer count.
    assert index > 1 or not odds.are_good
    now += 1.0
    odds.wait(functools.partial(odds.trip, vote))
    odds.note(index < 100 or index < 100 + wrong)
    odds.complete()
  assert odds.are_good == guesses


def test_an_island_that_asks_or_does_not_dare_waits():
  def guesses(dares):
    found = ahead.Guesses(Board(1).peers(0), ahead.Odds(), pool)
    found.dares = dares
    return found

  with futures.ThreadPoolExecutor(1) as pool:
    for dares, message, flies in (
      (True, np.array([0]), True),
      (True, np.array([1]), False),
      (False, np.array([0]), False),
    ):
      found = guesses(dares)
      assert found.fold('psum', message) == message
      assert (found.flight is not None) == flies
      found.settle()
      assert found.flight is None


TIMES = {'seconds': 0, 'samples_per_second': 0}
LATE = {'sync__delay': {'steps': 3, 'keep': 0.5, 'extrapolate': 0.5}}


@pytest.mark.slow
@pytest.mark.usefixtures('dares', 'one_saves_at_a_time')
@pytest.mark.parametrize('fields', [{}, LATE])
def test_a_budgeted_run_is_as_one_that_waits(fields, tmp_path):
  """It is cut at a checkpoint and resumed; model and data are as they were."""
  guessed = []

  def change(waits, i, found):
    found.peers.guessed = guessed.append
    if waits or i == 1:  # Each island decides for itself.
      found.speculates = False

  def train(name, waits):
    own = {'workers': 3, 'mapper': 'auto', 'model__name': 'normalized'}
    own |= {'sync__delta': None, 'sync__lssr': 0.7, 'model__dropout': 0.2}
    config = short_runs.config('selsync', **own | fields)
    changes = functools.partial(change, waits)
    island_runs.train(tmp_path / name, lambda i: config, 3, changes)

  train('waits', waits=True)
  assert not guessed
  train('guesses', waits=False)
  for i in range(3):
    live_runs.go_back(tmp_path / 'guesses' / f'{i}', 8)
  train('guesses', waits=False)
  assert {*guessed} == {True, False}
  for i in range(3):
    runs = [tmp_path / name / f'{i}' for name in ('waits', 'guesses')]
    for (name, left), (_, right) in zip(
      *(live_runs.arrays(run, short_runs.STEPS) for run in runs), strict=True
    ):
      assert left.tobytes() == right.tobytes(), name
    one, other = (
      [
        [row | TIMES for row in short_runs.rows(run)],
        {step: row['digest'] for step, row in rounds.read(run).items()},
      ]
      for run in runs
    )
    np.testing.assert_equal(one[0], other[0])
    assert one[1].items() <= other[1].items()
