"""The tables of workers of unequal speed."""

from benchmarks.quality import stragglers


def test_a_seed_that_misses_the_target_counts_as_infinite():
  assert stragglers.median([3.0, None, 1.0]) == 3.0
  assert stragglers.median([None, 2.0, None]) is None


def test_a_table_says_how_many_seeds_diverged():
  done = stragglers.Outcome(1.0, 2.0, 10.0, 0.96, 0.0)
  found = {c: {'bsp': [done], 'asp': []} for c in stragglers.CLUSTERS}
  text = stragglers.section('digits', found, 2)
  assert '| `bsp` | 0.9600 (1 of 2 seeds diverged) | 1e-05 | 1.0 |' in text
  assert '| `asp` | diverged | diverged | diverged | – |' in text
