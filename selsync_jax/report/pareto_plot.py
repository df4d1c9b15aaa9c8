"""Quality over cost: which methods no other beats in both."""

from collections.abc import Sequence
import functools

from matplotlib import ticker
from matplotlib.figure import Figure
import numpy as np

from selsync_jax.report import canvas
from selsync_jax.report import lines
from selsync_jax.report import metric_plot
from selsync_jax.report import palette
from selsync_jax.report.canvas import Layout
from selsync_jax.report.canvas import Plot
from selsync_jax.report.entries import Entry
from selsync_jax.runs import history

WIDE_RANGE = 10.0
"""Values further apart than this are drawn on a logarithmic axis."""


def plot(entries: Sequence[Entry], metric: str) -> Plot:
  """The figure of a comparison."""
  return Plot(
    f'front-{metric}',
    f'Validation {metric} against cost',
    'Large markers: the mean over seeds. Small markers: the seeds. The line '
    'joins the methods that no other beats in both score and cost.',
    functools.partial(draw, entries, metric),
  )


def draw(entries: Sequence[Entry], metric: str, layout: Layout) -> Figure:
  """A validation score over bytes, and over seconds."""
  runs = [run for entry in entries for run in entry.runs.values()]
  costs = ('bytes_per_worker', history.time_field(runs))
  figure, axes = canvas.panels(
    layout, 2, 280, columns=2, legend=len(entries) + 1
  )
  for ax, cost in zip(axes, costs, strict=True):
    means: list[tuple[float, float]] = []
    for i, entry in enumerate(entries):
      x, y = entry.values(cost), entry.values(f'validation_{metric}')
      style = palette.series_style(i) | {'linestyle': ''}
      ax.plot(list(x.values()), list(y.values()), **style, alpha=0.35)
      means.append((entry.mean(cost), entry.mean(f'validation_{metric}')))
      ax.plot(*means[-1], **style | {'markersize': 9}, label=entry.label)
    points = sorted(pareto(means, history.higher_is_better(metric)))
    ax.plot(
      *np.array(points).T,
      color=palette.LIGHT['muted'],
      linewidth=1,
      zorder=0,
      label='front: none is better and cheaper',
      gid='front',
    )
    name, unit = metric_plot.COSTS[cost]
    ax.set(xlabel=name)
    scores = [y for _, y in means]
    if max(scores) > WIDE_RANGE * min(scores) > 0:
      ax.set_yscale('log')
      lines.log_ticks(ax.yaxis, 6)
    costs = [x for x, _ in means]
    if max(costs) > WIDE_RANGE * min(costs) > 0:
      ax.set_xscale('log')
      ax.xaxis.set_major_formatter(ticker.EngFormatter(unit))
    else:
      lines.from_zero(ax.xaxis, unit)
  axes[0].set_title(f'validation {metric_plot.with_unit(metric)}')
  canvas.add_legend(figure, axes[0], layout)
  return figure


def pareto(
  points: Sequence[tuple[float, float]], higher_is_better: bool
) -> list[tuple[float, float]]:
  """Of points `(cost, quality)`, those that no other beats in both."""
  sign = 1 if higher_is_better else -1
  return [
    (cost, quality)
    for cost, quality in points
    if not any(
      c <= cost and sign * q >= sign * quality and (c, q) != (cost, quality)
      for c, q in points
    )
  ]
