"""A metric over its costs: steps, samples, bytes, seconds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import functools
from typing import TypeAlias

import numpy as np

from selsync_jax.report import figure
from selsync_jax.runs.history import Run

# The label of the axis and the unit of its ticks, by field of a row.
COSTS = {
  'step': ('steps', ''),
  'samples': ('samples, all workers', ''),
  'bytes_per_worker': ('bytes sent per worker', 'B'),
  'seconds': ('training time (seconds)', ''),
  'virtual_seconds': ('virtual time (seconds)', ''),
}
_BUCKETS = 120
_TRAINED = 'training batches'
_LONG = 60  # From this number of steps on, batches are drawn as a band.
_COVERED = (0.1, 0.5, 0.9)  # Quantiles of a bucket: a band, and its middle.
_SETTLED = 0.2
"""The share of evaluations after which a score is near its final value."""

Groups: TypeAlias = Mapping[str, Sequence[Run]]
"""The runs, one for each seed, by entry of the legend."""


def of_run(run: Run) -> Iterator[figure.Plot]:
  """Plots one run, and its training batches."""
  for metric in run.metrics:
    scored = _has(run, f'validation_{metric}')
    yield _plot({'validation, consensus': [run]} if scored else {}, metric, run)


def of_groups(groups: Groups) -> Iterator[figure.Plot]:
  """Plots several runs; the seeds of a method share a line."""
  runs = [run for each in groups.values() for run in each]
  for metric in dict.fromkeys(name for run in runs for name in run.metrics):
    yield _plot(groups, metric)


def time_field(runs: Iterable[Run]) -> str:
  """Returns the field with the time in seconds by which runs are compared.

  It is virtual time if all runs are simulated.
  """
  simulated = all(run.is_simulated for run in runs)
  return 'virtual_seconds' if simulated else 'seconds'


def with_unit(metric: str, runs: Sequence[Run]) -> str:
  """Returns the metric's name, with its unit if these runs agree about it."""
  units = {run.units.get(metric) for run in runs}
  unit = units.pop() if len(units) == 1 else None
  return f'{metric} ({unit})' if unit else metric


def _plot(
  groups: Groups, metric: str, batches: Run | None = None
) -> figure.Plot:
  """Plots the same lines, and one run's training batches, over four costs."""
  runs = [run for each in groups.values() for run in each]
  runs += [batches] if batches else []
  costs = ('step', 'samples', 'bytes_per_worker', time_field(runs))
  marks = {cost: _batches(batches, metric, cost) for cost in costs}
  for cost in costs:
    for i, (name, each) in enumerate(groups.items()):
      marks[cost] += _scores(name, each, metric, cost, figure.series(i))
  # The y values are the same over every cost.
  limits = _settled(runs, metric, marks['step'])
  y, panels = figure.Axis(limits) if limits else figure.Axis(), []
  for cost in costs:
    label, unit = COSTS[cost]
    x = figure.Axis(
      label=label,
      unit=unit,
      kind='zero',
      ticks=2 if unit else 4,  # A tick with a unit is wide.
      whole=cost in ('step', 'samples'),
      covers=[run.columns[cost] for run in runs],
    )
    title = with_unit(metric, runs) if not panels else ''
    panels.append(figure.Panel(title, x, y, marks[cost]))
  trained = [mark for mark in marks['step'] if mark.name == _TRAINED]
  about = ', and of the training batches' if trained else ''
  if batches is None:
    about = '; for a run without scores, of the training batches'
  sentences = {
    f'The {metric} of the consensus (the mean over workers) on the validation '
    f'split{about}.': True,
    'Lines: means over seeds; bands: all seeds.': any(
      len(each) > 1 for each in groups.values()
    ),
    'The panels show the same scores over four costs.': True,
    'The first scores may lie below the axis.': limits,
    'Gray band: 80% of the training batches around a step; the gray line is '
    'their median.': len(trained) > 1,
  }
  caption = figure.caption(sentences)
  return figure.Plot(metric, metric.capitalize(), caption, panels, columns=4)


def _has(run: Run, field: str) -> bool:
  return bool(np.isfinite(run.columns[field]).any())


def _scores(
  name: str, runs: Sequence[Run], metric: str, cost: str, look: figure.Look
) -> list[figure.Mark]:
  """Returns a score at each evaluation: the mean and range over seeds."""
  field = f'validation_{metric}'
  if not all(_has(run, field) for run in runs):
    field = metric
  tables = [run.columns for run in runs]
  scored = [each['step'][np.isfinite(each[field])] for each in tables]
  steps = functools.reduce(np.intersect1d, scored)  # Common to all seeds.
  rows = [np.isin(each['step'], steps) for each in tables]
  x, seeds = (
    np.array([each[of][at] for each, at in zip(tables, rows, strict=True)])
    for of in (cost, field)
  )
  x, y = x.mean(axis=0), seeds.mean(axis=0)
  low, high = seeds.min(axis=0), seeds.max(axis=0)
  kept = figure.envelope(y, _BUCKETS)
  # The nearest evaluation may be some steps away from the pointer.
  hover = f'{name}: {{y}} at {{x}}'
  line = figure.Line(name, x[kept], y[kept], look, hover=hover)
  if len(runs) == 1:
    return [line]
  hover = f'{len(runs)} seeds: {{low}} to {{high}}'
  band = figure.Band(name, x[kept], low[kept], high[kept], look.color, hover)
  return [band, line]


def _batches(run: Run | None, metric: str, cost: str) -> list[figure.Mark]:
  """Returns a metric of the training batches; for a long run, quantiles."""
  if run is None or not _has(run, metric):
    return []
  x, y, name = run.columns[cost], run.columns[metric], _TRAINED
  if len(y) < _LONG:
    return [figure.Line(name, x, y, figure.THIN)]
  buckets = min(_BUCKETS // 2, len(y) // 8)
  at, _, (low, middle, high) = figure.quantiles(
    y[:, np.newaxis], buckets, _COVERED
  )
  hover = f'{name}, 80%: {{low}} to {{high}}'
  band = figure.Band(name, x[at], low, high, 'muted', hover)
  return [band, figure.Line(name, x[at], middle, figure.THIN)]


def _settled(
  runs: Sequence[Run], metric: str, marks: Sequence[figure.Mark]
) -> tuple[float, float] | None:
  """Returns the limits of an axis of a share, from settled scores."""
  lines = [mark for mark in marks if isinstance(mark, figure.Line)]
  shown = figure.finite(line.y for line in lines)
  settled = figure.finite(
    line.y[int(len(line.y) * _SETTLED) :]
    for line in lines
    if line.name != _TRAINED
  )
  is_share = all(run.is_share(metric, shown) for run in runs)
  if not (len(settled) and is_share):
    return None
  low, high = settled.min(), shown.max()
  margin = max(0.05 * (high - low), 0.005)
  return max(low - margin, 0), min(high + margin, 1.002)
