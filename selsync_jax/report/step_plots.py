"""A line for each run over its steps: bytes, LSSR and the learning rate."""

from collections.abc import Sequence

from selsync_jax.report import figure
from selsync_jax.report import lines
from selsync_jax.report import palette
from selsync_jax.runs.history import Run

_BUCKETS = 270


def communication(runs: Sequence[Run]) -> figure.Plot:
  """Plots LSSR over steps, and bytes over steps against those of BSP."""
  bsp, x = _bsp(runs), _steps(runs)
  sent = [*bsp, *_lines(runs, 'bytes_per_worker')]
  y = figure.from_zero(figure.columns(sent), unit='B')
  panels = [figure.Panel('bytes sent per worker', x, y, sent)]
  against = ', against BSP (dotted)' if bsp else ''
  caption = f'Bytes: what each worker has sent so far{against}.'
  if any(run.is_lockstep for run in runs):
    title, limits = 'LSSR (local steps / steps)', figure.Axis((-0.02, 1.02))
    panels.insert(0, figure.Panel(title, x, limits, _lines(runs, 'lssr')))
    caption = (
      'LSSR: the share of the steps so far that stayed local. It is 0 for BSP, '
      f'which synchronizes at every step. {caption}'
    )
  title = 'Communication saved'
  return figure.Plot('communication', title, caption, panels, columns=2)


def learning_rate(runs: Sequence[Run]) -> figure.Plot:
  """Plots the learning rate of every step."""
  marks = [
    line._replace(look=line.look._replace(marker=''))
    for line in _lines(runs, 'lr')
  ]
  x, y = _steps(runs, ticks=8), figure.from_zero(figure.columns(marks))
  return figure.Plot(
    'learning-rate',
    'Learning rate',
    'Of the optimizer, at each step. It follows the schedule, whether the step '
    'synchronizes or not.',
    [figure.Panel('learning rate', x, y, marks, height=110)],
  )


def _steps(runs: Sequence[Run], ticks: int = 4) -> figure.Axis:
  steps = [run.column('step') for run in runs]
  return figure.from_zero(steps, 'steps', ticks=ticks)


def _lines(runs: Sequence[Run], field: str) -> list[figure.Line]:
  marks = []
  for i, run in enumerate(runs):
    y = run.column(field)
    kept = lines.envelope(y, _BUCKETS)
    x = run.column('step')[kept]
    marks.append(figure.Line(run.name, x, y[kept], palette.series(i)))
  return marks


def _bsp(runs: Sequence[Run]) -> list[figure.Line]:
  """Returns what BSP would send until the end of the longest finished run.

  It is empty if the finished runs differ in the bytes that BSP sends per step.
  """
  finished = [run.summary for run in runs if run.summary]
  rates = [each['bytes_per_worker_bsp'] / each['steps'] for each in finished]
  if not rates or max(rates) > 1.001 * min(rates):  # Bytes are rounded.
    return []
  longest = max(finished, key=lambda summary: summary['steps'])
  x, y = [0, longest['steps']], [0, longest['bytes_per_worker_bsp']]
  return [figure.Line('BSP would have sent', x, y, palette.DOTTED)]
