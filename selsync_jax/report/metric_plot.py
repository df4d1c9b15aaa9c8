"""A metric over what it cost: steps, samples, bytes, seconds."""

from collections.abc import Sequence
import functools

from matplotlib.figure import Figure
import numpy as np

from selsync_jax.report import canvas
from selsync_jax.report import lines
from selsync_jax.report import palette
from selsync_jax.report.canvas import Layout
from selsync_jax.report.canvas import Plot
from selsync_jax.runs import history
from selsync_jax.runs.history import Run

# The costs by field of a row: the label of the axis, the unit of its ticks.
COSTS = {
  'step': ('steps', ''),
  'samples': ('samples, all workers', ''),
  'bytes_per_worker': ('bytes sent per worker', 'B'),
  'seconds': ('training time (seconds)', ''),
  'virtual_seconds': ('virtual time (seconds)', ''),
}
_UNITS = {
  'loss': 'nats',
  'accuracy': 'share of examples',
  'top5': 'share of examples',
}


def plot(runs: Sequence[Run], metric: str) -> Plot:
  """One figure of a metric of all runs."""
  if len(runs) == 1:
    batches = ', and of the training batches.'
  else:
    batches = '; for a run without scores, of the training batches.'
  return Plot(
    metric,
    metric.capitalize(),
    f'The {metric} of the consensus (the mean over workers) on the validation '
    f'split{batches} The panels show the same scores over four costs.',
    functools.partial(draw, runs, metric),
  )


def with_unit(metric: str) -> str:
  """The metric's name with its unit, if it has one."""
  unit = _UNITS.get(metric)
  return f'{metric} ({unit})' if unit else metric


def draw(runs: Sequence[Run], metric: str, layout: Layout) -> Figure:
  """A metric over steps, samples, bytes and seconds."""
  series = _series(runs, metric)
  costs = ('step', 'samples', 'bytes_per_worker', history.time_field(runs))
  figure, axes = canvas.panels(layout, len(costs), 190, legend=len(series))
  values = np.concatenate([run.column(field) for run, field, *_ in series])
  for ax, cost in zip(axes, costs, strict=True):
    name, unit = COSTS[cost]
    for i, (run, field, label, style) in enumerate(series):
      lines.draw(
        ax,
        run.column(cost),
        run.column(field),
        layout.width // layout.columns // 2,
        **style,
        label=label,
        gid=f'{field}-{cost}-{i}',
      )
    _set_scale(ax, values)
    ax.set(xlabel=name)
    lines.from_zero(ax.xaxis, unit)
  axes[0].set_title(with_unit(metric))
  canvas.add_legend(figure, axes[0], layout)
  return figure


def _series(runs, metric):
  """The lines of a metric: `(run, field, label, style)`."""
  score = f'validation_{metric}'
  if len(runs) > 1:
    return [
      (
        run,
        score if _has(run, score) else metric,
        run.name,
        palette.series_style(i),
      )
      for i, run in enumerate(runs)
    ]
  (run,) = runs
  batches = {'color': palette.LIGHT['muted'], 'linewidth': 0.8}
  series = [
    (run, metric, 'training batches', batches),
    (run, score, 'consensus, validation split', palette.series_style(0)),
  ]
  return [entry for entry in series if _has(*entry[:2])]


def _has(run, field):
  return bool(np.isfinite(run.column(field)).any())


def _set_scale(ax, values):
  """A logarithmic axis where values exceed 1 and span a factor of ten."""
  known = values[np.isfinite(values) & (values > 0)]
  if len(known) and known.max() > 1 and known.max() / known.min() > 10:
    ax.set_yscale('log')
    lines.log_ticks(ax.yaxis, 6)
