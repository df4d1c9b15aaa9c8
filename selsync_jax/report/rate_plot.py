"""The learning rate of every step."""

from collections.abc import Sequence

from selsync_jax.report import figure
from selsync_jax.report import lines
from selsync_jax.report import palette
from selsync_jax.report.figure import Line
from selsync_jax.report.figure import Panel
from selsync_jax.report.figure import Plot
from selsync_jax.runs.history import Run

_BUCKETS = 270


def plot(runs: Sequence[Run]) -> Plot:
  """A line for each run, over steps."""
  marks = []
  for i, run in enumerate(runs):
    y = run.column('lr')
    kept = lines.envelope(y, _BUCKETS)
    x = run.column('step')[kept]
    look = palette.series(i)._replace(marker='')
    marks.append(Line(run.name, x, y[kept], look))
  steps = [run.column('step') for run in runs]
  return Plot(
    'learning-rate',
    'Learning rate',
    'Of the optimizer, at each step. It follows the schedule, whether the step '
    'synchronizes or not.',
    [
      Panel(
        'learning rate',
        figure.from_zero(steps, 'steps', ticks=8),
        figure.from_zero(figure.columns(marks)),
        marks,
        height=110,
      )
    ],
  )
