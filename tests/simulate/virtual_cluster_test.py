"""Clusters: their times, and their refusals."""

import numpy as np
import pytest

from selsync_jax.config import ConfigError
from tests.support import small


def table(steps=200, workers=4, seed=0, **fields):
  """Seconds [steps, workers]."""
  cluster = small.cluster(workers=workers, steps=steps, seed=seed, **fields)
  return np.array(
    [[cluster.seconds(w, s) for w in range(workers)] for s in range(steps)]
  )


def test_constant_and_factors_are_the_same_at_every_step():
  np.testing.assert_allclose(table(), 0.1)
  factors = (1.0, 2.0, 0.5, 3.0)
  many = table(compute='factors', factors=factors)
  np.testing.assert_allclose(many, np.tile(0.1 * np.array(factors), (200, 1)))


def test_lognormal_has_its_mean_and_spread():
  many = table(steps=2000, compute='lognormal', sigma=0.4)
  assert many.mean() == pytest.approx(0.1, rel=0.02)
  assert np.log(many).std() == pytest.approx(0.4, rel=0.03)
  columns = np.corrcoef(many.T) - np.eye(4)
  assert abs(columns).max() < 0.1  # Workers are independent.


def test_delays_hit_a_number_of_random_workers_at_each_step():
  many = table(steps=1000, compute='delays', late=1, delay=0.3)
  late = np.isclose(many, 0.4)
  np.testing.assert_array_equal(late.sum(axis=1), 1)
  assert np.isclose(many[~late], 0.1).all()
  np.testing.assert_allclose(late.mean(axis=0), 0.25, atol=0.05)


def test_skew_is_linear_and_rotates():
  many = table(steps=4, compute='skewed', low=0.1, high=0.4)
  delays = np.array([0.1, 0.2, 0.3, 0.4])
  for step in range(4):
    np.testing.assert_allclose(many[step], 0.1 + np.roll(delays, -step))


def test_a_trace_is_read_as_it_stands(tmp_path):
  path = tmp_path / 'trace.csv'
  path.write_text('0.1,0.2\n0.3,0.4\n')
  found = table(steps=2, workers=2, compute='trace', trace=str(path))
  np.testing.assert_array_equal(found, [[0.1, 0.2], [0.3, 0.4]])


def test_a_seed_fixes_all_draws():
  fields = {'compute': 'lognormal'}
  np.testing.assert_array_equal(table(**fields), table(**fields))
  assert not np.allclose(table(**fields), table(seed=1, **fields))


@pytest.mark.parametrize(
  'text, line',
  [
    ('0.1,0.1,0.1,0.1\n', 'needs a row for each of 12 steps, got 1'),
    ('0.1,0.1\n' * 12, r'row 1 must have 4 numbers above 0 \(workers\), got'),
    ('0.1,0.1,0.1,-1\n' * 12, 'row 1 must have 4 numbers above 0'),
    ('a,b,c,d\n' * 12, "row 1: could not convert string to float: 'a'"),
  ],
)
def test_a_bad_trace_is_one_line(tmp_path, text, line):
  path = tmp_path / 'trace.csv'
  path.write_text(text)
  with pytest.raises(ConfigError, match=line):
    small.cluster(compute='trace', trace=str(path))


def test_a_trace_that_a_fast_worker_outruns_is_one_line(tmp_path):
  path = tmp_path / 'trace.csv'
  path.write_text('0.1,1,1,1\n' * small.STEPS)
  engine = small.clock('asp', compute='trace', trace=str(path))
  with pytest.raises(ConfigError, match='has no row 13, and worker 0 is fast'):
    engine.advance(small.WORKERS * small.STEPS)
