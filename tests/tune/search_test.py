"""The trials of a search: their settings, their process, and their number."""

import contextlib
import math
import os
import pathlib
import tempfile

import pytest

from selsync_jax.config import ConfigError
from selsync_jax.configs import digits
from selsync_jax.runs.history import Trial
from selsync_jax.tune.choices import Range
from selsync_jax.tune.objective import Objective, Point
from selsync_jax.tune.search import Search
from selsync_jax.tune.space import Space

SOONEST = Objective(higher=True, cost='seconds', budget=100, target=0.9)
RATE = {'rate': Range(0.01, 10.0)}
OWN = {'rate': 0.1, 'period': 8, 'wire': None}
SPACE = Space(
  {
    'local_sgd': {**RATE, 'period': Range(1, 64), 'wire': ('own', 'int8')},
    'diloco': {**RATE, 'period': Range(5, 500)},
  },
  {'local_sgd': OWN, 'diloco': OWN},
)


def opened(folder, space=SPACE, objective=SOONEST, seed=1, refused=''):
  made = {}

  def make(method, fields):
    if method == refused or fields.get('period') == 13:
      raise ConfigError('unlucky')
    name = '-'.join([method, *(f'{k}{v}' for k, v in fields.items())])
    made[name] = OWN | fields
    config = digits.get_config()
    return Trial(name, 0.1, 0, pathlib.Path(folder, name), [], config)

  def read(run):
    return lambda: search.curve or points(**made[run.label])

  search = Search(folder, 'ours', {}, space, objective, seed, make, read)
  search.curve = None
  return search


def points(rate, period, wire):
  """A run whose best rate is 1 and whose best period is 16.

  Bad settings are slower, and very bad settings never reach the target.
  """
  del wire
  off = abs(math.log10(rate)) + abs(math.log2(period / 16))
  top = 1 - 0.03 * off
  return [Point(top * (1 - 0.5**t), 1.0 * t, (2 + off) * t) for t in range(9)]


def try_one(search, count=1000):
  if attempt := search.ask(count):
    attempt.tell()
  return attempt


def params(search):
  return [frozen.params for frozen in search._study.trials]


@contextlib.contextmanager
def in_memory():
  """A folder in memory: SQLite waits for the disk at each transaction."""
  shared = '/dev/shm' if os.path.isdir('/dev/shm') else None
  with tempfile.TemporaryDirectory(dir=shared) as folder:
    yield pathlib.Path(folder)


@pytest.fixture
def tmp_path():
  with in_memory() as folder:
    yield folder


@pytest.fixture(scope='module')
def whole():
  with in_memory() as folder:
    search = opened(folder)
    while try_one(search, 16):
      pass
    yield search


def test_a_search_has_as_many_trials_as_it_should_and_finds_the_best(whole):
  assert whole.done == 16
  values = [result.value for result in whole.results()]
  reached = [value for value in values if value is not None]
  assert values == sorted(reached) + [None] * (16 - len(reached))
  assert reached[0] < 3 * 4  # At best 2 seconds a step, and 4 steps.
  assert whole.ask(16) is None


def test_the_same_seed_gives_the_same_trials(whole, tmp_path):
  for seed, same in ((1, True), (2, False)):
    search = opened(tmp_path / f'{seed}', seed=seed)
    for _ in range(12 if same else 3):
      try_one(search)
    tried = params(search)
    assert (tried == params(whole)[: len(tried)]) == same


@pytest.mark.slow
def test_a_killed_search_continues_as_if_uninterrupted(whole, tmp_path):
  """Each trial is started by a process that is killed, and ended by another."""
  begun = []
  for _ in range(13):
    asked = opened(tmp_path).ask(13)
    begun.append(asked.run.workdir)
    assert try_one(opened(tmp_path), 13).run == asked.run
  assert opened(tmp_path).ask(13) is None
  assert len(set(begun)) == 13
  tried = params(opened(tmp_path))
  assert tried == params(whole)[: len(tried)]


def judged(search, curve):
  """How many points of a run count, and whether it was stopped early."""
  search.curve = curve
  attempt = try_one(search)
  return len(attempt.points), attempt.is_pruned


def test_the_worse_half_at_a_quarter_of_the_budget_is_stopped(tmp_path):
  """Even if its steps cost less, and it is ahead at each of them."""
  within = Objective(higher=True, cost='sent', budget=1000)
  search = opened(tmp_path, objective=within)
  good, bad = (
    [Point(height * t, 100.0 * t / ratio, t) for t in range(1, 11)]
    for height, ratio in ((1, 1), (1.2, 0.5))
  )
  unscored = Point(math.nan, 240.0, 2)  # Compared at its next score.
  assert judged(search, [*good[:2], unscored, *good[2:]]) == (11, False)
  assert judged(search, bad) == (2, True)
  assert judged(search, good) == (10, False)


def test_a_run_that_takes_twice_as_long_as_the_best_is_stopped(tmp_path):
  search = opened(tmp_path)
  slow = [Point(0.1 * t, t, 2.4 * t) for t in range(1, 10)]
  best = [Point(0.1 * t, t, t) for t in range(1, 10)]
  assert judged(search, best) == (9, False)
  assert judged(search, slow) == (8, True)  # At 19.2 s.
  assert [r.value for r in search.results()] == [9, None]


def test_a_decision_to_stop_stands_after_a_kill(tmp_path):
  within = Objective(higher=True, cost='sent', budget=1000)
  search = opened(tmp_path, objective=within)
  good, bad = ([Point(s, 250.0, 1), Point(s, 900.0, 2)] for s in (0.9, 0.1))
  judged(search, good)
  for _ in range(2):
    again = opened(tmp_path, objective=within)
    again.curve = bad
    attempt = again.ask(1000)
    assert attempt() and attempt.is_pruned and attempt.points == bad[:1]


def test_equal_trials_have_one_run(tmp_path):
  same = {'rate': (1.0,), 'period': (8,)}
  search = opened(tmp_path, Space({'diloco': same}, {'diloco': OWN}))
  first, *others = [search.ask(3) for _ in range(3)]
  assert all(other.run == first.run for other in others)
  assert search.ask(3) is None
  for attempt in (first, *others):
    attempt.tell()
  assert search.done == 3


def test_a_space_without_a_possible_trial_is_an_error(tmp_path):
  search = opened(
    tmp_path, Space({'diloco': {'period': (13,)}}, {'diloco': OWN})
  )
  with pytest.raises(ConfigError, match=r'^30 draws in a row .*: unlucky'):
    search.ask(1)


def test_refused_settings_are_avoided_and_do_not_count(tmp_path):
  search = opened(tmp_path, refused='diloco')
  while try_one(search, 14):
    pass
  assert {result.method for result in search.results()} == {'local_sgd'}
  assert search.done == 14
