"""The learning rate of every step."""

from collections.abc import Sequence

from selsync_jax.report import figure
from selsync_jax.report import lines
from selsync_jax.runs.history import Run

_BUCKETS = 270


def plot(runs: Sequence[Run]) -> figure.Plot:
  """Plots a line for each run, over steps."""
  marks = [
    line._replace(look=line.look._replace(marker=''))
    for line in lines.of_runs(runs, 'lr', _BUCKETS)
  ]
  steps = [run.column('step') for run in runs]
  return figure.Plot(
    'learning-rate',
    'Learning rate',
    'Of the optimizer, at each step. It follows the schedule, whether the step '
    'synchronizes or not.',
    [
      figure.Panel(
        'learning rate',
        figure.from_zero(steps, 'steps', ticks=8),
        figure.from_zero(figure.columns(marks)),
        marks,
        height=110,
      )
    ],
  )
