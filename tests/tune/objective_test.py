"""The objective of a search, by the points of a run."""

import math

from selsync_jax.tune.objective import Objective, Point

# Its score rises and falls again; a step costs 10 bytes and a second.
POINTS = [Point(s, 10 * t, t) for t, s in enumerate([0.5, 0.8, 0.9, 0.7], 1)]


def test_the_first_score_at_the_target_decides_and_its_cost_is_the_value():
  soonest = Objective(higher=True, cost='seconds', budget=8, target=0.8)
  assert soonest.decisive(POINTS, True) == POINTS[1]
  assert soonest.value(POINTS[1]) == 2
  assert [soonest.is_over(p) for p in POINTS[:2]] == [False, True]
  assert soonest.decisive(POINTS[:1], True) is None


def test_the_best_score_within_the_budget_decides():
  within = Objective(higher=True, cost='sent', budget=20)
  assert within.decisive(POINTS, True) == POINTS[1]  # 0.9 costs 30 bytes.
  assert within.value(POINTS[1]) == 0.8
  assert [within.is_over(p) for p in POINTS[:3]] == [False, False, True]
  assert within.decisive(POINTS[2:], True) is None


def test_a_lower_loss_is_better():
  within = Objective(higher=False, cost='seconds', budget=3)
  assert within.decisive(POINTS, True) == POINTS[0]
  soonest = Objective(higher=False, cost='seconds', budget=8, target=0.7)
  assert soonest.decisive(POINTS, True) == POINTS[0]
  assert soonest.decisive(POINTS[1:3], True) is None


def test_a_run_ends_where_its_budget_does_also_between_two_scores():
  within, soonest = (Objective(True, 'sent', 15, t) for t in (None, 0.8))
  points = [POINTS[0], Point(math.nan, 16, 2)]
  assert [within.is_over(p) for p in points] == [False, True]
  assert within.decisive(points, is_done=False) == POINTS[0]
  assert within.decisive(points[1:], is_done=False) is None
  assert soonest.decisive(points, is_done=True) is None


def test_a_target_beyond_the_budget_counts_as_missed():
  soonest = Objective(higher=True, cost='seconds', budget=2, target=0.9)
  assert [soonest.is_over(p) for p in POINTS] == [False, False, True, True]
  for score in (0.8, 0.95):  # The last row may reach it, but too late.
    late = Point(score, 40, 3)
    assert soonest.decisive([*POINTS[:2], late, POINTS[2]], True) is None


def test_better_values_rank_first():
  for higher, target in ((True, None), (False, None), (True, 0.8)):
    each = Objective(higher, 'seconds', 8, target)
    better, worse = (2, 1) if higher and target is None else (1, 2)
    assert each.rank(better) < each.rank(worse) < each.rank(None)


def test_a_run_that_diverges_within_the_budget_has_no_value():
  """A run that reached its target or spent its budget before has a value."""
  within, spent = (Objective(True, 'sent', budget) for budget in (50, 30))
  soonest = Objective(higher=True, cost='seconds', budget=8, target=0.8)
  assert within.decisive(POINTS, is_done=False) is None
  assert within.decisive(POINTS, is_done=True) == POINTS[2]
  assert spent.decisive(POINTS, is_done=False) == POINTS[2]
  assert soonest.decisive(POINTS, is_done=False) == POINTS[1]
