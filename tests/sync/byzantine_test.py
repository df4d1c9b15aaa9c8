"""Averages of which less than half of the workers may be wrong."""

import jax
import numpy as np
import optax
import pytest
from scipy import optimize, stats

import selsync_jax as ss
from selsync_jax.sync.averagers import MEAN
from tests.support import rounds

N, SIZE = 8, 13
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, SIZE)).astype(np.float32) + 5
START = np.full(SIZE, 4.5, np.float32)
BROKEN = (np.nan, np.inf, 1e30)


def clipped(x, start, radius=1.0, iterations=3):
  """Centered clipping as in the paper, with a relative radius."""
  center = start.astype(float)
  for _ in range(iterations):
    moves = x - center
    lengths = np.linalg.norm(moves, axis=1)
    kept = np.minimum(1, radius * np.median(lengths) / lengths)
    center = center + np.mean(kept[:, None] * moves, axis=0)
  return center


def median(x, start):
  """The point with the least sum of distances, by a general solver."""

  def total(center):
    return np.linalg.norm(x - center, axis=1).sum()

  found = optimize.minimize(total, np.median(x.astype(float), axis=0), tol=1e-9)
  return found.x


def trimmed(x, start):
  return stats.trim_mean(x, 0.25)


AVERAGERS = {
  'geometric_median': (ss.geometric_median(), median),
  'centered_clip': (ss.centered_clip(), clipped),
  'trimmed_mean': (ss.trimmed_mean(), trimmed),
}
each_averager = pytest.mark.parametrize('name', AVERAGERS)


def averaged(averager, x, start=START, mapper='vmap'):
  """The result of one average of rows, equal on all workers, and the state."""
  found, state = rounds.run(averager, start, (x - start)[None], mapper)
  np.testing.assert_array_equal(found[0], np.stack([found[0, 0]] * len(x)))
  return found[0, 0], jax.tree.map(lambda leaf: leaf[0, 0], state)


@each_averager
def test_it_is_what_the_paper_defines(name, mapper):
  averager, reference = AVERAGERS[name]
  far = X[:4].copy()
  far[1] *= 20
  found, _ = averaged(averager, far, mapper=mapper)
  np.testing.assert_allclose(found, reference(far, START), atol=2e-3)


@each_averager
def test_the_order_of_workers_an_origin_and_a_unit_do_not_matter(name):
  averager, _ = AVERAGERS[name]
  x = X.copy()
  x[2] *= -10
  found, _ = averaged(averager, x)

  def change(x):
    return 1e3 * x + 4e3

  moved, _ = averaged(averager, change(x)[RNG.permutation(N)], change(START))
  np.testing.assert_allclose(moved, change(found), rtol=1e-4)


@each_averager
def test_equal_workers_stay_as_they_are(name):
  averager, _ = AVERAGERS[name]
  found, _ = averaged(averager, np.stack([X[0]] * N))
  np.testing.assert_array_equal(found, X[0])


def test_clipping_without_an_unusual_worker_is_the_mean():
  found, _ = averaged(ss.centered_clip(radius=3.0), X)
  np.testing.assert_allclose(found, X.mean(0), rtol=1e-5)


@each_averager
@pytest.mark.parametrize('value', [-100.0, 1e15, np.nan])
def test_less_than_half_of_the_workers_move_it_little(name, value):
  averager, _ = AVERAGERS[name]
  if name == 'trimmed_mean':
    averager = ss.trimmed_mean(0.4)
  honest = X[3:]
  reach = np.linalg.norm(honest - honest.mean(0), axis=1).max()
  x = X.copy()
  x[:3] = value
  found, _ = averaged(averager, x, honest.mean(0))
  assert np.linalg.norm(found - honest.mean(0)) < 3 * reach


def test_the_mean_does_not_withstand_one():
  x = X.copy()
  x[0] *= 1e6
  found, _ = averaged(MEAN, x)
  assert np.linalg.norm(found - X.mean(0)) > 1e5


@pytest.mark.parametrize('name', ['geometric_median', 'centered_clip'])
def test_a_worker_with_a_value_that_is_not_finite_is_as_if_absent(name):
  """Also if the value's square is not finite."""
  averager, reference = AVERAGERS[name]
  for value in BROKEN:
    x = X.copy()
    x[5, SIZE - 1] = value
    found, state = averaged(averager, x)
    there = np.delete(X, 5, axis=0)
    np.testing.assert_allclose(found, reference(there, START), atol=2e-3)
    report = averager.metrics(state)
    assert (report['least_weighted'], report['least_weight']) == (5, 0)


def test_if_half_of_the_workers_are_not_finite_neither_is_the_median():
  x = X.copy()
  x[:4] = np.nan
  found, _ = averaged(ss.geometric_median(), x)
  assert np.isnan(found).all()


@pytest.mark.parametrize('name', ['geometric_median', 'centered_clip'])
def test_the_row_names_the_worker_with_the_least_weight(name):
  averager, _ = AVERAGERS[name]
  fresh = averager.metrics(averager.init(X[0]))
  assert (fresh['least_weighted'], fresh['least_weight']) == (-1, 1)
  x = X.copy()
  x[6] *= -1
  _, state = averaged(averager, x)
  report = averager.metrics(state)
  assert report['least_weighted'] == 6
  assert report['least_weight'] < 0.5


@each_averager
def test_entries_beside_params_are_combined_separately(name):
  averager, reference = AVERAGERS[name]
  stats = 1e4 * X[:, :3]
  params = X.copy()
  params[2] *= 30
  start = {'params': START, 'model_state': {'a': 1e4 * START[:3]}, 'none': {}}
  moves = {
    'params': (params - START)[None],
    'model_state': {'a': (stats - 1e4 * START[:3])[None]},
    'none': {},
  }
  found, _ = rounds.run(averager, start, moves)
  np.testing.assert_allclose(
    found['params'][0, 0], reference(params, START), atol=5e-3
  )
  np.testing.assert_allclose(
    found['model_state']['a'][0, 0],
    reference(stats, 1e4 * START[:3]),
    rtol=1e-2,
  )


def test_the_center_of_clipping_is_the_tree_after_an_outer_step():
  averager = ss.outer(optax.sgd(0.5), averager=ss.centered_clip())
  moves = RNG.normal(size=(3, N, SIZE)).astype(np.float32)
  moves[1, 3] *= 50
  found, _ = rounds.run(averager, START, moves)
  center = START.astype(float)
  for i in range(3):
    goal = clipped(center + moves[i], center)
    center = center + 0.5 * (goal - center)
    np.testing.assert_allclose(found[i, 0], center, rtol=1e-4)


def test_workers_that_are_dropped_are_less_than_half():
  x = np.array([[0.0], [1.0], [8.0]], np.float32)
  for drop in (0.1, 0.49):
    averager = ss.trimmed_mean(drop)
    found, _ = rounds.run(averager, np.zeros(1, np.float32), x[None])
    assert (found == 1).all()  # The median of 0, 1, and 8.
