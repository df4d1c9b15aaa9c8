"""Choosing a method's settings by their time to an accuracy on validation.

The time of a run is counted, not measured: a step costs 1, an average costs
`RATIO`, and a vote nothing. A setting is tried with every seed. While the best
value of a field lies at the edge of its grid, the grid grows there by a factor
of two.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import itertools
import math
import os
import statistics
from typing import Any, NamedTuple

from benchmarks.quality import runs
from selsync_jax.runs import records
from selsync_jax.runs.history import Trial

RATIO = 10
"""Ratio of communication to computation under BSP."""

ACCURACY = 'validation_accuracy'
ROUNDS = 10
"""How often a grid grows before the search gives up."""

Point = tuple[float, ...]
"""A value for each field of a grid, in their order."""


class Outcome(NamedTuple):
  """The progress of a run.

  Attributes:
    accuracies: accuracy on validation, by step.
    averages: steps that end with an average. An evaluation needs the consensus,
      and adds an average if its step has none.
  """

  accuracies: dict[int, float]
  averages: dict[int, int]

  @property
  def final(self) -> float:
    """The last accuracy; -inf if the run diverged before it had one."""
    return [-math.inf, *self.accuracies.values()][-1]

  @property
  def best(self) -> float:
    """The highest accuracy; -inf if the run diverged before it had one."""
    return max([-math.inf, *self.accuracies.values()])

  def reached(self, target: float) -> int | None:
    """The first evaluated step that reaches an accuracy."""
    return next((s for s, a in self.accuracies.items() if a >= target), None)

  def cost(self, target: float) -> float:
    """The time to reach an accuracy, in steps' computations."""
    step = self.reached(target)
    return math.inf if step is None else step + RATIO * self.averages[step]


def outcome_of(rows: Sequence[Mapping[str, Any]], target: float) -> Outcome:
  """Reads a run's progress from its rows, up to a target.

  The run may have continued, because stopping a run takes a moment.
  """
  accuracies, averages, count = {}, {}, 0
  for row in rows:
    count += bool(row['synced'])
    if ACCURACY in row:
      accuracies[row['step']] = row[ACCURACY]
      averages[row['step']] = count + (not row['synced'])
      if row[ACCURACY] >= target:
        break
  return Outcome(accuracies, averages)


def train(trials: Sequence[Trial], targets: Sequence[float]) -> list[Outcome]:
  """The progress of trials, each trained until its target or its end."""
  pairs = zip(trials, targets, strict=True)
  until = {trial.workdir: target for trial, target in pairs}

  def found(trial):
    return outcome_of(records.read_metrics(trial.workdir), until[trial.workdir])

  def is_enough(trial):
    return found(trial).best >= until[trial.workdir]

  runs.train_all(trials, os.cpu_count() or 1, is_enough)
  return [found(trial) for trial in trials]


def grow(
  grid: Mapping[str, Sequence[float]],
  cost: Callable[[list[Point]], list[Any]],
  bounds: Mapping[str, tuple[float, float]],
) -> tuple[Point, Any]:
  """The cheapest point of a grid that grows until the point is inside.

  Args:
    grid: ascending values by field, each twice the previous one.
    cost: returns the cost of points; any values that can be sorted.
    bounds: values by field beyond which the grid does not grow, because a run
      would be the same or impossible. The best point may lie there.

  Returns:
    The point, and its cost.

  Raises:
    RuntimeError: if the best point is at an edge that has grown too often.
  """
  axes = {field: list(values) for field, values in grid.items()}
  costs: dict[Point, Any] = {}
  for _ in range(ROUNDS):
    new = [p for p in itertools.product(*axes.values()) if p not in costs]
    costs.update(zip(new, cost(new), strict=True))
    best = min(sorted(costs), key=costs.__getitem__)
    edges = list(_beyond(axes, best, bounds))
    if not edges:
      return best, costs[best]
    for field, value in edges:
      axes[field] = sorted([*axes[field], value])
  raise RuntimeError(
    f'the best values, {dict(zip(axes, best, strict=True))}, are still at the '
    'edge of their grid'
  )


def _beyond(
  axes: Mapping[str, list[float]],
  best: Point,
  bounds: Mapping[str, tuple[float, float]],
) -> Iterator[tuple[str, float]]:
  """The missing values of a grid around its best point, by field."""
  for (field, values), value in zip(axes.items(), best, strict=True):
    least, most = bounds.get(field, (0.0, math.inf))
    if value == values[0] and value / 2 >= least:
      yield field, type(value)(value / 2)
    if value == values[-1] and value * 2 <= most:
      yield field, value * 2


def preference(
  outcomes: Sequence[Outcome], targets: Sequence[float]
) -> tuple[float, ...]:
  """The sort key of a setting, from its seeds; lower is better.

  It holds the number of seeds that miss their target; the median time to the
  target; if any seed misses it, the mean of the best accuracies; and the mean
  """
  costs = [o.cost(t) for o, t in zip(outcomes, targets, strict=True)]
  finite = [cost for cost in costs if math.isfinite(cost)]
  missed = len(costs) - len(finite)
  best = statistics.fmean(outcome.best for outcome in outcomes)
  mean = statistics.fmean(finite) if finite else math.inf
  return missed, statistics.median(costs), -best if missed else 0.0, mean
