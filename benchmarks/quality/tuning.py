"""Choosing a method's settings by the time they need, on validation.

The time of a run is counted, not measured: a step costs 1, an average costs
`RATIO`, and a vote nothing. A setting is tried with every seed. If the best
value of a field lies at the edge of its grid, the grid grows there by a factor
of two, until it does not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import concurrent.futures
import contextlib
import functools
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import statistics
from typing import Any, NamedTuple

from selsync_jax.commands import config_file
from selsync_jax.devices import backend

RATIO = 10
"""Of communication to computation under BSP."""

ACCURACY = 'validation_accuracy'
GROWTHS = 5
"""How often one end of a grid may grow before the search gives up."""

Point = tuple[float, ...]
"""A value for each field of a grid, in their order."""


class Setting(NamedTuple):
  """A run to try.

  Attributes:
    file: of the config, with the method.
    fields: flags that change it, each `--config.FIELD=VALUE`.
  """

  file: str
  fields: tuple[str, ...]


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


def train(setting: Setting, target: float, every: float) -> Outcome:
  """Trains in this process until a target is reached, or to the end.

  The process has a device for each worker.

  Args:
    setting: the run.
    target: the accuracy on validation at which it may stop.
    every: epochs from one evaluation to the next.
  """
  from selsync_jax.runs.fetching import Fetcher
  from selsync_jax.runs.ledger import NonFiniteError
  from selsync_jax.runs.ledger import Totals
  from selsync_jax.training import start
  from selsync_jax.training.evaluation import Evaluator
  from selsync_jax.training.settings import check
  from selsync_jax.training.setup import create_setup

  fields = [*setting.fields, f'--config.eval.every_epochs={every}']
  config = config_file.load(setting.file, fields)
  setup, rows = create_setup(check(config)), []
  problem, plan = setup.problem, setup.plan
  fetcher = Fetcher(
    setup.ledger(Totals()),
    plan.mapper.gather,
    plan.config.log.fetch_every,
    [rows.append],
  )
  evaluator = Evaluator(
    problem, plan.mapper, setup.strategy.averages_model_state
  )
  workers = range(plan.workers)
  with contextlib.suppress(NonFiniteError):
    state, take_step = start.fresh(setup), setup.train_step()
    batches = problem.data.batches(workers, 0, problem.steps)
    for step, batch in enumerate(batches, 1):
      state, metrics = take_step(state, batch)
      fetcher.add(metrics)
      if step % plan.evaluate_every and step < problem.steps:
        fetcher.enter_ready()
        continue
      mean = evaluator.consensus(state.shared)
      scores = fetcher.enter_all(
        functools.partial(evaluator.scores, mean, 'validation')
      )
      if scores[ACCURACY] >= target:
        break
  return outcome_of(rows)


def outcome_of(rows: Sequence[Mapping[str, Any]]) -> Outcome:
  """What the rows of a run say, as in `metrics.jsonl`."""
  accuracies, averages, count = {}, {}, 0
  for row in rows:
    count += bool(row['synced'])
    if ACCURACY in row:
      accuracies[row['step']] = row[ACCURACY]
      averages[row['step']] = count + (not row['synced'])
  return Outcome(accuracies, averages)


class Trainer:
  """Trains settings in processes, and remembers their outcomes in a file.

  Args:
    path: of the file; what is in it is not trained again.
    workers: of every setting.
    every: epochs from one evaluation to the next.
  """

  def __init__(self, path: pathlib.Path, workers: int, every: float):
    self._path, self._workers, self._every = path, workers, every
    found = json.loads(path.read_text()) if path.exists() else {}
    self._known = {
      key: Outcome(*({int(s): x for s, x in each.items()} for each in outcome))
      for key, outcome in found.items()
    }

  def __call__(
    self, settings: Sequence[Setting], targets: Sequence[float]
  ) -> list[Outcome]:
    """The outcomes of settings, each as far as its target or to the end."""
    names = [' '.join([each.file, *each.fields]) for each in settings]
    runs = list(zip(settings, targets, strict=True))
    keys = [
      f'{name} to {t:.4f}' for name, t in zip(names, targets, strict=True)
    ]
    new = dict(zip(keys, runs, strict=True))
    new = {key: run for key, run in new.items() if key not in self._known}
    with concurrent.futures.ProcessPoolExecutor(
      os.cpu_count(),
      multiprocessing.get_context('spawn'),
      initializer=functools.partial(backend.start, workers=self._workers),
    ) as pool:
      run = functools.partial(train, every=self._every)
      outcomes = pool.map(run, *zip(*new.values(), strict=True)) if new else ()
      for key, outcome in zip(new, outcomes, strict=True):
        self._known[key] = outcome
        self._path.write_text(json.dumps(self._known))
        print(f'{key}: {outcome.final:.4f}', flush=True)
    return [self._known[key] for key in keys]


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
  for _ in range(2 * GROWTHS):
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


def preference(outcomes: Sequence[Outcome], targets: Sequence[float]) -> Point:
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
