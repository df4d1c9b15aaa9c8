"""The choice of settings, and the headline about them."""

import math

import pytest

from benchmarks.quality import stragglers, time_to_accuracy, tuning


def test_a_step_costs_one_an_average_ten_and_the_first_score_decides():
  accuracies = {10: 0.7, 20: 0.9, 30: 0.8, 40: 0.95}
  averages = {10: 2, 20: 3, 30: 4, 40: 5}
  outcome = tuning.Outcome(accuracies, averages)
  assert outcome.reached(0.8) == 20 and outcome.cost(0.8) == 50
  assert outcome.reached(0.99) is None and outcome.cost(0.99) == math.inf
  assert outcome.final == 0.95


def rows_of(accuracies):
  return [
    {'step': step, 'synced': step == 2, 'validation_accuracy': accuracy}
    for step, accuracy in enumerate(accuracies, 1)
  ]


def test_an_evaluation_between_two_averages_needs_one_more():
  outcome = tuning.outcome_of(rows_of([0.1, 0.5, 0.5]), math.inf)
  assert outcome.averages == {1: 1, 2: 1, 3: 2}


def test_steps_between_the_target_and_the_stop_do_not_count():
  outcome = tuning.outcome_of(rows_of([0.1, 0.5, 0.9]), 0.4)
  assert outcome.accuracies == {1: 0.1, 2: 0.5}


def test_a_grid_grows_until_the_best_is_inside():
  """The best rate is 1.6, three doublings above the grid; the period is 4."""
  tried = []

  def cost(points):
    tried.extend(points)
    return [abs(math.log2(r / 1.6)) + abs(math.log2(p / 4)) for r, p in points]

  grid = {'rate': [0.1, 0.2], 'period': [8, 16]}
  best, least = tuning.grow(grid, cost, {})
  assert best == pytest.approx((1.6, 4)) and least == pytest.approx(0)
  assert len(tried) == len(set(tried))
  rates, periods = ({point[i] for point in tried} for i in (0, 1))
  assert max(rates) == pytest.approx(3.2) and min(periods) == 2
  assert all(isinstance(period, int) for period in periods)


def test_a_best_setting_at_the_edge_is_refused():
  with pytest.raises(RuntimeError, match='still at the edge of their grid'):
    tuning.grow({'rate': [1.0, 2.0]}, lambda ps: [-r for (r,) in ps], {})


def test_a_period_of_one_step_needs_no_shorter_one():
  bounds = {'period': (1, 9)}
  best, _ = tuning.grow(
    {'period': [1, 2]}, lambda ps: [p for (p,) in ps], bounds
  )
  assert best == (1,)


def test_a_setting_that_misses_a_target_is_worse_than_one_that_is_slower():
  def outcome(step):
    return tuning.Outcome({step: 0.9} if step else {30: 0.1}, {step: 1, 30: 1})

  targets = [0.8, 0.8, 0.85]
  safe = tuning.preference([outcome(s) for s in (10, 20, 30)], targets)
  wild = tuning.preference([outcome(s) for s in (9, 10, None)], targets)
  assert safe < wild
  assert safe[:2] == (0, 30) and wild[:2] == (1, 20)


def test_the_sentence_has_the_median_and_the_range_over_seeds():
  result = {
    'tuned_on': [0, 1, 2, 3, 4],
    'chosen': {'local SGD': ('local_sgd', {'sync.period': 32})},
    'rows': {
      'BSP': [10.0, 12.0, 8.0],
      time_to_accuracy.FAST: [2.0, 2.0, 2.0],
      'SelSync': [5.0, 3.0, None],
      'local SGD': [4.0, 4.0, 4.0],
    },
  }
  assert time_to_accuracy.sentence(result) == (
    'Where BSP communicates for 10 times as long as it computes, SelSync '
    "reaches BSP's accuracy 2.0 times (up to 4.0, with 1 of 3 seeds never) "
    'sooner, local SGD with its best period, 32, 2.5 times (2.0 to 3.0) '
    'sooner, and BSP itself on a '
    'network without a limit 5.0 times (4.0 to 6.0): medians and ranges over 3 '
    'seeds, each method at the learning rate that is fastest on validation '
    'with 5 others.'
  )


def test_a_seed_that_misses_the_target_counts_as_infinite():
  assert stragglers.median([3.0, None, 1.0]) == 3.0
  assert stragglers.median([None, 2.0, None]) is None


def test_a_table_says_how_many_seeds_diverged():
  done = stragglers.Outcome(1.0, 2.0, 10.0, 0.96, 0.0)
  found = {c: {'bsp': [done], 'asp': []} for c in stragglers.CLUSTERS}
  text = stragglers.section('digits', found, 2)
  assert '| `bsp` | 0.9600 (1 of 2 seeds diverged) | 1e-05 | 1.0 |' in text
  assert '| `asp` | diverged | diverged | diverged | – |' in text
