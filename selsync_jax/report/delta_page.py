"""A page about a suggested delta: LSSR over delta as a figure and a table."""

from collections.abc import Mapping, Sequence
import pathlib

from selsync_jax.report import figure
from selsync_jax.report import image_files
from selsync_jax.report import page
from selsync_jax.runs import files


def plot(
  wanted: float,
  delta: float,
  lssr: float,
  curves: Mapping[str, tuple[figure.Values, figure.Values]],
) -> figure.Plot:
  """Plots LSSR over delta, the wanted LSSR, and a suggested delta.

  `lssr` is that of the suggestion. A curve is ascending deltas and the LSSR at
  each of them, by label.
  """
  lines = [
    figure.Line(label, *curve, figure.series(i)._replace(marker=''), 'pre')
    for i, (label, curve) in enumerate(curves.items())
  ]
  deltas = [line.x for line in lines]
  x = figure.logarithmic([*deltas, [delta]], 'delta (no unit)')
  dot = figure.Look('ink', width=0, marker='o', size=6)
  marks = [
    *lines,
    figure.Line('wanted', x.limits, [wanted] * 2, figure.DOTTED),
    figure.Line(f'delta {delta}', [delta], [lssr], dot),
  ]
  title = 'LSSR (local steps / steps)'
  return figure.Plot(
    'delta',
    'LSSR as a function of delta',
    'The share of steps that stay local for each delta, by the gradient '
    'changes recorded under BSP, and with the deltas that were tried.',
    [figure.Panel(title, x, figure.Axis((-0.02, 1.02)), marks, height=280)],
  )


def write(
  title: str,
  subtitle: str,
  plotted: figure.Plot,
  table: Sequence[Sequence[str]],
  out: pathlib.Path,
) -> pathlib.Path:
  """Writes figure and page, with a table of head and rows; returns its path."""
  image_files.write([plotted], out)
  head, *rows = table
  body = [
    page.header(title, subtitle),
    page.figure(plotted),
    page.table('table', 'Some deltas', head, [(r[0], r[1:]) for r in rows]),
  ]
  path = out / 'delta.html'
  files.write(path, page.page('Choosing delta', body))
  return path
