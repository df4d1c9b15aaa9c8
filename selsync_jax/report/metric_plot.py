"""A metric over its costs: steps, samples, bytes, seconds."""

from collections.abc import Mapping, Sequence
import functools
from typing import TypeAlias

import numpy as np

from selsync_jax.report import figure
from selsync_jax.runs import history
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
_LONG = 60  # From this number of steps on, batches are drawn as a band.
_COVERED = (0.1, 0.5, 0.9)  # Quantiles of a bucket: a band, and its middle.
_SETTLED = 0.2
"""The share of evaluations after which a score is near its final value."""

Groups: TypeAlias = Mapping[str, Sequence[Run]]
"""The runs, one for each seed, by entry of the legend."""


def of_run(run: Run, metric: str, bsp: Run | None = None) -> figure.Plot:
  """Plots one run, its training batches, and the same run under BSP."""
  field, extra = f'validation_{metric}', ''
  groups = {'validation, consensus': [run]} if _has(run, field) else {}
  if bsp and _has(bsp, field):
    groups['validation, BSP'] = [bsp]
    extra = ' BSP: the run beside this one with the same config.'
  trained = ', and of the training batches' if _has(run, metric) else ''
  if trained and len(run.rows) >= _LONG:
    extra += (
      ' Gray band: 80% of the training batches around a step; the gray line is '
      'their median.'
    )
  return _plot(groups, metric, f'{trained}.', extra, run)


def of_groups(groups: Groups, metric: str) -> figure.Plot:
  """Plots several runs; the seeds of a method share a line."""
  about = '; for a run without scores, of the training batches.'
  if max(map(len, groups.values())) > 1:
    about += ' Lines: means over seeds; bands: all seeds.'
  return _plot(groups, metric, about)


def with_unit(metric: str, runs: Sequence[Run]) -> str:
  """Returns the metric's name, with its unit if these runs agree about it."""
  units = {run.units.get(metric) for run in runs}
  unit = units.pop() if len(units) == 1 else None
  return f'{metric} ({unit})' if unit else metric


def _plot(
  groups: Groups,
  metric: str,
  about: str,
  extra: str = '',
  batches: Run | None = None,
) -> figure.Plot:
  """Plots the same lines over four costs; the texts are for the caption."""
  runs = [run for each in groups.values() for run in each]
  runs += [batches] if batches else []
  costs = ('step', 'samples', 'bytes_per_worker', history.time_field(runs))
  scores = {
    cost: [
      mark
      for i, (name, each) in enumerate(groups.items())
      for mark in _scores(name, each, metric, cost, figure.series(i))
    ]
    for cost in costs
  }
  trained = {
    cost: _batches(batches, metric, cost) if batches else [] for cost in costs
  }
  # The y values are the same over every cost.
  ours = figure.columns(scores['step'])
  shown = figure.known([*ours, *figure.columns(trained['step'])])
  is_share = all(run.is_share(metric, shown) for run in runs)
  y = _axis(ours, shown, is_share)
  panels = []
  for cost in costs:
    label, unit = COSTS[cost]
    paid = [run.column(cost) for run in runs]
    ticks = 2 if unit else 4  # A tick with a unit is wide.
    x = figure.from_zero(paid, label, unit, ticks)
    x = x._replace(whole=cost in ('step', 'samples'))
    title = with_unit(metric, runs) if not panels else ''
    panels.append(figure.Panel(title, x, y, [*trained[cost], *scores[cost]]))
  caption = (
    f'The {metric} of the consensus (the mean over workers) on the validation '
    f'split{about} The panels show the same scores over four costs.'
  )
  if is_share:
    caption += ' The first scores may lie below the axis.'
  caption += extra
  return figure.Plot(metric, metric.capitalize(), caption, panels, columns=4)


def _has(run: Run, field: str) -> bool:
  return bool(np.isfinite(run.column(field)).any())


def _scores(
  name: str, runs: Sequence[Run], metric: str, cost: str, look: figure.Look
) -> list[figure.Mark]:
  """Returns a score at each evaluation: the mean and range over seeds."""
  field = f'validation_{metric}'
  if not all(_has(run, field) for run in runs):
    field = metric
  scored = [run.column('step')[np.isfinite(run.column(field))] for run in runs]
  steps = functools.reduce(np.intersect1d, scored)  # Common to all seeds.
  rows = [np.searchsorted(run.column('step'), steps) for run in runs]
  points = np.array(
    [
      [run.column(each)[at] for each in (cost, field)]
      for run, at in zip(runs, rows, strict=True)
    ]
  )
  x, y = points.mean(axis=0)
  low, high = points[:, 1].min(axis=0), points[:, 1].max(axis=0)
  kept = figure.envelope(y, _BUCKETS)
  # The nearest evaluation may be some steps away from the pointer.
  hover = f'{name}: {{y}} at {{x}}'
  line = figure.Line(name, x[kept], y[kept], look, hover=hover)
  if len(runs) == 1:
    return [line]
  hover = f'{len(runs)} seeds: {{low}} to {{high}}'
  band = figure.Band(name, x[kept], low[kept], high[kept], look.color, hover)
  return [band, line]


def _batches(run: Run, metric: str, cost: str) -> list[figure.Mark]:
  """Returns a metric of the training batches; for a long run, quantiles."""
  if not _has(run, metric):
    return []
  x, y, name = run.column(cost), run.column(metric), 'training batches'
  if len(y) < _LONG:
    return [figure.Line(name, x, y, figure.THIN)]
  buckets = min(_BUCKETS // 2, len(y) // 8)
  at, _, (low, middle, high) = figure.quantiles(
    y[:, np.newaxis], buckets, _COVERED
  )
  hover = f'{name}, 80%: {{low}} to {{high}}'
  band = figure.Band(name, x[at], low, high, 'muted', hover)
  return [band, figure.Line(name, x[at], middle, figure.THIN)]


def _axis(
  scores: Sequence[figure.Values], shown: figure.Values, is_share: bool
) -> figure.Axis:
  """Returns an axis around what is shown; for a share, from settled scores."""
  settled = figure.known([y[int(len(y) * _SETTLED) :] for y in scores])
  if not (len(settled) and is_share):
    return figure.spanning([shown])
  low, high = min(settled), max(shown)
  margin = max(0.05 * (high - low), 0.005)
  return figure.Axis((max(low - margin, 0), min(high + margin, 1.002)))
