"""A trial in progress: decides whether its run continues; records the result.

Trials are compared at the same cost, not at the same step: a method with cheap
steps is compared with others once it has spent as much as they had.
"""

from collections.abc import Callable, Sequence
import math

import optuna
from optuna.trial import TrialState

from selsync_jax.runs.history import Trial
from selsync_jax.tune.objective import Objective, Point

FIRST = 25
"""Percent of the budget at which a trial is first compared with others."""

_PRUNED = 'pruned'  # The attribute of a trial that was worse than others.

SLOWER = 2.0
"""A trial that takes this many times as long as the best one is stopped."""


def create_pruner() -> optuna.pruners.BasePruner:
  """Returns a pruner: it stops the worse half at `FIRST` times 1, 2, 4, ..."""
  return optuna.pruners.SuccessiveHalvingPruner(
    min_resource=FIRST, reduction_factor=2
  )


class Attempt:
  """A trial whose run is judged by its points as they are written.

  Args:
    trial: the trial of Optuna; its reports are not repeated, and a decision to
      stop it stands.
    objective: the objective of the search.
    run: the trial's run.
    read: a function that returns the points of the run so far, in their order.
  """

  def __init__(
    self,
    trial: optuna.Trial,
    objective: Objective,
    run: Trial,
    read: Callable[[], Sequence[Point]],
  ):
    self.run = run
    self.points: list[Point] = []  # The points that count.
    self.is_pruned = False
    self._trial, self._objective, self._read = trial, objective, read
    known = trial.study.trials[trial.number]
    # Percent of the budget, and whether the trial was stopped there.
    self._reported = max(known.intermediate_values, default=-1)
    self._was_pruned = _PRUNED in known.user_attrs
    self._longest = math.inf
    if objective.target is not None:
      states = [TrialState.COMPLETE]
      complete = trial.study.get_trials(deepcopy=False, states=states)
      costs = [frozen.value for frozen in complete if frozen.value is not None]
      self._longest = SLOWER * min(costs, default=math.inf)
    self._is_over = False

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

  def tell(self) -> None:
    """Records the result of the run at its end."""
    self()
    study, objective = self._trial.study, self._objective
    point = objective.decisive(self.points, self.run.is_done)
    shown = point or objective.best(self.points)
    self._trial.set_user_attr('point', shown)
    if point and not self.is_pruned:
      study.tell(self._trial, objective.value(point))
    else:
      study.tell(self._trial, state=TrialState.PRUNED)
