"""Quality over cost, with the Pareto front of the methods."""

from collections.abc import Iterator, Sequence
import math

import numpy as np

from selsync_jax.report import figure, metric_plot
from selsync_jax.report.comparison_table import Entry


def plot(entries: Sequence[Entry], metric: str) -> figure.Plot:
  """Plots a validation score over bytes, and over seconds."""
  runs = [run for entry in entries for run in entry.runs.values()]
  # Seconds of one machine say little about a cluster; virtual ones do.
  simulated = metric_plot.time_field(runs) == 'virtual_seconds'
  costs = ['bytes_per_worker', *(['virtual_seconds'] * simulated)]
  field = f'validation_{metric}'
  entries = _joined(entries, [field, *costs])
  title = f'validation {metric_plot.with_unit(metric, runs)}'
  higher, y, panels = metric in runs[0].goal.higher, figure.Axis(), []
  for cost in costs:
    marks, names = _marks(entries, cost, field, higher)
    label, unit = metric_plot.COSTS[cost]
    x = figure.Axis(label=label, unit=unit, kind='cost')
    height = min(280 + 8 * len(entries), 480)
    text = '' if panels else title
    panels.append(figure.Panel(text, x, y, marks, height, names))
  return figure.Plot(
    f'front-{metric}',
    f'Validation {metric} against cost',
    'Large markers: the mean over seeds, with a name where there is room. '
    'Small markers: the seeds. A line joins the methods that no other beats in '
    'both score and cost, if there are several. A method that sent nothing is '
    'not among them.',
    panels,
    columns=2,
    compares_x=False,
  )


def _joined(entries: Sequence[Entry], fields: Sequence[str]) -> list[Entry]:
  """Joins entries with equal values, which would hide each other."""
  same: dict[str, list[Entry]] = {}
  for entry in entries:
    same.setdefault(f'{[*map(entry.values, fields)]}', []).append(entry)
  return [
    each[0]._replace(label=' = '.join(entry.label for entry in each))
    for each in same.values()
  ]


def _short(labels: Sequence[str]) -> list[str]:
  """Returns labels without their settings, where they stay different."""
  heads = [label.split(', ')[0] for label in labels]
  return [
    head if heads.count(head) == 1 and ' = ' not in label else label
    for head, label in zip(heads, labels, strict=True)
  ]


def _marks(
  entries: Sequence[Entry], cost: str, field: str, higher_is_better: bool
) -> tuple[list[figure.Mark], list[figure.Name]]:
  """Returns the front, then the mean and the seeds of each method; and names.

  Names of the front come first, then names of the best methods.
  """
  means = [(entry.mean(cost), entry.mean(field)) for entry in entries]
  front = pareto(means, higher_is_better)
  marks: list[figure.Mark] = [*front_line(front)]
  for i, (entry, mean) in enumerate(zip(entries, means, strict=True)):
    small = figure.series(i)._replace(width=0, dash=(), opacity=0.35)
    large = small._replace(size=9, opacity=1)
    paid, scored = entry.values(cost), entry.values(field)
    shared = [seed for seed in paid if seed in scored]
    x, y = [[of[seed] for seed in shared] for of in (paid, scored)]
    hover = f'{entry.label}: {{y}} for {{x}}'
    of_mean = f'{hover}, mean of {len(shared)} seeds'
    marks += [  # The legend shows the first.
      figure.Line(entry.label, [mean[0]], [mean[1]], large, hover=of_mean),
      figure.Line(entry.label, x, y, small, hover=hover),
    ]
  short = _short([entry.label for entry in entries])
  names = [
    figure.Name(text, *mean, entry.label)
    for text, mean, entry in zip(short, means, entries, strict=True)
    if math.isfinite(mean[1])
  ]
  sign = -1 if higher_is_better else 1
  names.sort(key=lambda name: ((name.x, name.y) not in front, sign * name.y))
  return marks, names


def front_line(
  front: Sequence[tuple[float, float]],
) -> Iterator[figure.Line]:
  """Yields the line through the points of a front, if there are several."""
  if len(points := sorted(set(front))) > 1:
    name, look = 'front: none is better and cheaper', figure.Look('muted', 1)
    x, y = np.transpose(points)
    yield figure.Line(name, x, y, look, hover='')


def pareto(
  points: Sequence[tuple[float, float]], higher_is_better: bool
) -> list[tuple[float, float]]:
  """Returns the points `(cost, quality)` that no other beats.

  A point counts if its quality is finite and its cost is above 0.
  """
  sign = 1 if higher_is_better else -1
  points = [(c, q) for c, q in points if c > 0 and math.isfinite(q)]
  return [
    (cost, quality)
    for cost, quality in points
    if not any(
      c <= cost and sign * q >= sign * quality and (c, q) != (cost, quality)
      for c, q in points
    )
  ]
