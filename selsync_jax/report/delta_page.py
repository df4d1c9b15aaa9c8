"""A page about a suggested delta: LSSR over delta as a figure and a table."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import NamedTuple

from selsync_jax.report import figure
from selsync_jax.report import page
from selsync_jax.report import png
from selsync_jax.runs import files


class Suggestion(NamedTuple):
  """A suggested delta and its reasons."""

  wanted: float  # The wanted LSSR, in [0, 1).
  delta: float  # The suggestion.
  lssr: float  # The LSSR that it gives.
  # Ascending deltas and the LSSR at each of them, by label.
  curves: Mapping[str, tuple[figure.Values, figure.Values]]


def plot(suggestion: Suggestion) -> figure.Plot:
  """Plots LSSR over delta, and the suggestion."""
  curves = [
    figure.Line(label, *curve, figure.series(i)._replace(marker=''), 'pre')
    for i, (label, curve) in enumerate(suggestion.curves.items())
  ]
  deltas = [line.x for line in curves]
  x = figure.logarithmic([*deltas, [suggestion.delta]], 'delta (no unit)')
  wanted = [suggestion.wanted] * 2
  point = figure.Line(
    f'delta {suggestion.delta}',
    [suggestion.delta],
    [suggestion.lssr],
    figure.Look('ink', width=0, marker='o', size=6),
  )
  line = figure.Line('wanted', x.limits, wanted, figure.DOTTED)
  marks = [*curves, line, point]
  title = 'LSSR (local steps / steps)'
  return figure.Plot(
    'delta',
    'LSSR as a function of delta',
    'The share of steps that stay local for each delta, by the gradient '
    'changes recorded under BSP, and with the deltas that were tried.',
    [figure.Panel(title, x, figure.Axis((-0.02, 1.02)), marks, height=280)],
  )


def write(
  suggestion: Suggestion,
  table: Sequence[Sequence[str]],
  subtitle: str,
  out: pathlib.Path,
) -> pathlib.Path:
  """Writes figure and page, with a table of head and rows; returns its path."""
  figures = [plot(suggestion)]
  png.write(figures, out)
  head, *rows = table
  title = f'delta {suggestion.delta} for an LSSR of {suggestion.wanted:g}'
  body = [
    page.header(title, subtitle),
    *map(page.figure, figures),
    page.table('table', 'Some deltas', head, [(r[0], r[1:]) for r in rows]),
  ]
  path = out / 'delta.html'
  files.write(path, page.page('Choosing delta', body))
  return path
