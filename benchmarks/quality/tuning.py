"""Choosing a method's settings by the time they need, on validation.

The time of a run is counted, not measured: a step costs 1, an average costs
`RATIO`, and a vote nothing. A setting is tried with every seed. If the best
value of a field lies at the edge of its grid, the grid grows there by a factor
of two, until it does not.
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
"""Of communication to computation under BSP."""

ACCURACY = 'validation_accuracy'
ROUNDS = 10
"""How often a grid is tried, and then grows, before the search gives up."""

Point = tuple[float, ...]
"""A value for each field of a grid, in their order."""


class Outcome(NamedTuple):
  """What a run reached.

  Attributes:
    accuracies: on validation, by step.
    averages: after each of these steps; a last one is added where the step
      itself has none, because an evaluation needs the consensus.
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
  """What the rows of a run say, until it reaches a target.

  It may have gone on: it takes a moment to be stopped.
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
  """What trials reach, each trained as far as its target or to its end."""
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
  """The cheapest point of a grid that grows until it is inside.

  Args:
    grid: by field, ascending values, each twice the one before.
    cost: of points; anything that can be ordered.
    bounds: by field, values beyond which the grid does not grow, because a
      run would be the same or not exist. The best may lie there.

  Returns:
    The point, and its cost.

  Raises:
    RuntimeError: if the best is at an edge that has grown too often.
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
  """The values that a grid lacks around its best point, by field."""
  for (field, values), value in zip(axes.items(), best, strict=True):
    least, most = bounds.get(field, (0.0, math.inf))
    if value == values[0] and value / 2 >= least:
      yield field, type(value)(value / 2)
    if value == values[-1] and value * 2 <= most:
      yield field, value * 2


def preference(
  outcomes: Sequence[Outcome], targets: Sequence[float]
) -> tuple[float, ...]:
  """The key by which a setting is chosen, from its seeds; lower is better.

  How many seeds miss their target; the median time to it; if any miss it, the
  mean of the best accuracies; and the mean time of the seeds that reach it.
  """
  costs = [o.cost(t) for o, t in zip(outcomes, targets, strict=True)]
  finite = [cost for cost in costs if math.isfinite(cost)]
  missed = len(costs) - len(finite)
  best = statistics.fmean(outcome.best for outcome in outcomes)
  mean = statistics.fmean(finite) if finite else math.inf
  return missed, statistics.median(costs), -best if missed else 0.0, mean
