"""Whether a run goes on, by its scores so far and those of other trials.

What decides are scores at a cost, not at a step: a method whose steps are cheap
is compared with others when it has spent as much as they had.
"""

from collections.abc import Callable, Sequence
import math

import optuna
from optuna.trial import TrialState

from selsync_jax.tune.objective import Objective, Point

FIRST = 25
"""Percent of the budget at which a trial is first compared with others."""

_PRUNED = 'pruned'  # The attribute of a trial that others were better than.

SLOWER = 2.0
"""A trial that takes so many times as long as the best one is stopped."""


def create_pruner() -> optuna.pruners.BasePruner:
  """Returns what stops the worse half at `FIRST`, and whenever that doubles."""
  return optuna.pruners.SuccessiveHalvingPruner(
    min_resource=FIRST, reduction_factor=2
  )


class Judge:
  """Judges a run by its points, in their order, as they come in.

  Args:
    study: the study, with the other trials.
    trial: the trial of the run; what it has reported is not reported again, and
      a decision to stop it stands.
    objective: what is best.
    points: a function that returns the points of the run so far.
  """

  def __init__(
    self,
    study: optuna.Study,
    trial: optuna.Trial,
    objective: Objective,
    points: Callable[[], Sequence[Point]],
  ):
    self._trial, self._objective, self._read = trial, objective, points
    known = study.trials[trial.number]
    # Percent of the budget; and whether the last one is where it was stopped.
    self._reported = max(known.intermediate_values, default=-1)
    self._was_pruned = _PRUNED in known.user_attrs
    self._longest = math.inf
    if objective.target is not None:
      complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
      costs = [frozen.value for frozen in complete if frozen.value is not None]
      self._longest = SLOWER * min(costs, default=math.inf)
    self._is_over = False
    self.points: list[Point] = []  # Those that count.
    self.is_pruned = False

  def __call__(self) -> bool:
    """Returns whether the run has done enough."""
    for point in self._read()[len(self.points) :]:
      if self._is_over or self.is_pruned:
        break
      self.points.append(point)
      self._is_over = self._objective.is_over(point)
      if not self._is_over and not math.isnan(point.score):
        self.is_pruned = self._falls_behind(point)
    return self._is_over or self.is_pruned

  def _falls_behind(self, point: Point) -> bool:
    """Reports the best score so far; returns whether others were better."""
    if getattr(point, self._objective.cost) > self._longest:
      return True
    percent = int(100 * self._objective.share(point))
    if percent <= self._reported:
      return self._was_pruned and percent == self._reported
    self._reported = percent
    best = self._objective.best(self.points)
    assert best is not None
    self._trial.report(self._objective.progress(best), percent)
    prunes = self._trial.should_prune()
    if prunes:  # Before the run is stopped, which takes a while.
      self._trial.set_user_attr(_PRUNED, True)
    return prunes
