"""The communication that runs saved against BSP."""

from collections.abc import Sequence

from selsync_jax.report import figure
from selsync_jax.report import lines
from selsync_jax.report import palette
from selsync_jax.runs.history import Run

_BUCKETS = 270


def plot(runs: Sequence[Run]) -> figure.Plot:
  """Plots LSSR over steps, and bytes over steps against those of BSP."""
  bsp = _bsp(runs)
  sent = [*bsp, *lines.of_runs(runs, 'bytes_per_worker', _BUCKETS)]
  y = figure.from_zero(figure.columns(sent), unit='B')
  panels = [figure.Panel('bytes sent per worker', _steps(runs), y, sent)]
  against = ', against BSP (dotted)' if bsp else ''
  caption = f'Bytes: what each worker has sent so far{against}.'
  if any(run.is_lockstep for run in runs):
    title, limits = 'LSSR (local steps / steps)', figure.Axis((-0.02, 1.02))
    lssr = lines.of_runs(runs, 'lssr', _BUCKETS)
    panels.insert(0, figure.Panel(title, _steps(runs), limits, lssr))
    caption = (
      'LSSR: the share of the steps so far that stayed local. It is 0 for BSP, '
      f'which synchronizes at every step. {caption}'
    )
  return figure.Plot(
    'communication',
    'Communication saved',
    caption,
    panels,
    columns=2,
  )


def _steps(runs: Sequence[Run]) -> figure.Axis:
  return figure.from_zero([run.column('step') for run in runs], 'steps')


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
