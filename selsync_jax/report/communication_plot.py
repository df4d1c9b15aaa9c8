"""How often workers synchronized, and what that saved against BSP."""

from collections.abc import Sequence

from selsync_jax.report import figure
from selsync_jax.report import lines
from selsync_jax.report import palette
from selsync_jax.report.figure import Axis
from selsync_jax.report.figure import Line
from selsync_jax.report.figure import Panel
from selsync_jax.report.figure import Plot
from selsync_jax.runs.history import Run

_BUCKETS = 270


def plot(runs: Sequence[Run]) -> Plot:
  """LSSR over steps, and bytes over steps against those of BSP."""
  bsp = _bsp(runs)
  sent = [*bsp, *_marks(runs, 'bytes_per_worker')]
  y = figure.from_zero(figure.columns(sent), unit='B')
  panels = [Panel('bytes sent per worker', _steps(runs), y, sent)]
  against = ', against BSP (dotted)' if bsp else ''
  caption = f'Bytes: what each worker has sent so far{against}.'
  if any(run.is_lockstep for run in runs):
    title, limits = 'LSSR (local steps / steps)', Axis((-0.02, 1.02))
    lssr = _marks(runs, 'lssr')
    panels.insert(0, Panel(title, _steps(runs), limits, lssr))
    caption = (
      'LSSR: the share of the steps so far that stayed local. It is 0 for BSP, '
      f'which synchronizes at every step. {caption}'
    )
  return Plot(
    'communication',
    'Communication saved',
    caption,
    panels,
    columns=2,
  )


def _steps(runs: Sequence[Run]) -> Axis:
  return figure.from_zero([run.column('step') for run in runs], 'steps')


def _marks(runs: Sequence[Run], field: str) -> list[Line]:
  marks = []
  for i, run in enumerate(runs):
    y = run.column(field)
    kept = lines.envelope(y, _BUCKETS)
    x = run.column('step')[kept]
    marks.append(Line(run.name, x, y[kept], palette.series(i)))
  return marks


def _bsp(runs: Sequence[Run]) -> list[Line]:
  """What BSP sends, up to the end of the longest finished run.

  Nothing if the finished runs do not agree, as with other workers or models.
  """
  finished = [run.summary for run in runs if run.summary]
  rates = [each['bytes_per_worker_bsp'] / each['steps'] for each in finished]
  if not rates or max(rates) > 1.001 * min(rates):  # Bytes are rounded.
    return []
  longest = max(finished, key=lambda summary: summary['steps'])
  x, y = [0, longest['steps']], [0, longest['bytes_per_worker_bsp']]
  return [Line('BSP would have sent', x, y, palette.DOTTED)]
