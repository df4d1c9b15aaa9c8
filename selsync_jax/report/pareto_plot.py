"""Quality over cost, with the Pareto front of the methods."""

from collections.abc import Sequence
import math

import numpy as np

from selsync_jax.report import figure
from selsync_jax.report import metric_plot
from selsync_jax.report import palette
from selsync_jax.report.entries import Entry
from selsync_jax.runs import history

WIDE_RANGE = 10.0
"""Costs further apart than this are drawn on a logarithmic axis."""


def plot(entries: Sequence[Entry], metric: str) -> figure.Plot:
  """Plots a validation score over bytes, and over seconds."""
  runs = [run for entry in entries for run in entry.runs.values()]
  costs = ('bytes_per_worker', history.time_field(runs))
  field = f'validation_{metric}'
  scores = [list(entry.values(field).values()) for entry in entries]
  y = figure.spanning(scores)
  title = f'validation {metric_plot.with_unit(metric, runs)}'
  return figure.Plot(
    f'front-{metric}',
    f'Validation {metric} against cost',
    'Large markers: the mean over seeds. Small markers: the seeds. A line '
    'joins the methods that no other beats in both score and cost, if there '
    'are several.',
    [
      figure.Panel(
        title if i == 0 else '',
        _cost_axis(entries, cost),
        y,
        _marks(entries, cost, field, metric in runs[0].goal.higher),
        height=280,
      )
      for i, cost in enumerate(costs)
    ],
    columns=2,
    compares_x=False,
  )


def _marks(
  entries: Sequence[Entry], cost: str, field: str, higher_is_better: bool
) -> list[figure.Mark]:
  """Returns the front, then the seeds and the mean of each method."""
  means = [(entry.mean(cost), entry.mean(field)) for entry in entries]
  front = sorted(pareto(means, higher_is_better))
  marks: list[figure.Mark] = []
  if len(front) > 1:
    name = 'front: none is better and cheaper'
    x, y = np.transpose(front)
    marks.append(
      figure.Line(name, x, y, figure.Look('muted', width=1), hover='')
    )
  for i, (entry, mean) in enumerate(zip(entries, means, strict=True)):
    seeds = palette.series(i)._replace(width=0, dash=(), opacity=0.35)
    x, y = entry.values(cost), entry.values(field)
    shared = [seed for seed in x if seed in y]
    hover = f'{entry.label}: {{y}} for {{x}}'
    marks += [
      figure.Line(
        entry.label,
        [x[seed] for seed in shared],
        [y[seed] for seed in shared],
        seeds,
        hover=hover,
      ),
      figure.Line(
        entry.label,
        [mean[0]],
        [mean[1]],
        seeds._replace(size=9, opacity=1),
        hover=f'{hover}, mean of {len(shared)} seeds',
      ),
    ]
  return marks


def _cost_axis(entries: Sequence[Entry], cost: str) -> figure.Axis:
  label, unit = metric_plot.COSTS[cost]
  means = [entry.mean(cost) for entry in entries]
  values = [list(entry.values(cost).values()) for entry in entries]
  if max(means) > WIDE_RANGE * min(means) > 0:
    return figure.logarithmic(values, label, unit)
  return figure.from_zero(values, label, unit)


def pareto(
  points: Sequence[tuple[float, float]], higher_is_better: bool
) -> list[tuple[float, float]]:
  """Returns the points `(cost, quality)` that no other beats in both.

  Points whose quality is not finite are left out.
  """
  sign = 1 if higher_is_better else -1
  points = [point for point in points if math.isfinite(point[1])]
  return [
    (cost, quality)
    for cost, quality in points
    if not any(
      c <= cost and sign * q >= sign * quality and (c, q) != (cost, quality)
      for c, q in points
    )
  ]
