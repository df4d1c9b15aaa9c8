"""A page about a suggested delta: LSSR over delta as a figure and a table."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from selsync_jax.report import figure
from selsync_jax.report import page
from selsync_jax.report import palette
from selsync_jax.report import png
from selsync_jax.report.figure import Axis
from selsync_jax.report.figure import Line
from selsync_jax.report.figure import Look
from selsync_jax.report.figure import Panel
from selsync_jax.report.figure import Plot
from selsync_jax.runs import files


class Curve(NamedTuple):
  """LSSR over delta, by one recording.

  Attributes:
    deltas: ascending, above 0.
    lssr: local steps / steps at each of them.
  """

  deltas: Float[np.ndarray, 'points']
  lssr: Float[np.ndarray, 'points']


class Suggestion(NamedTuple):
  """What the page shows.

  Attributes:
    wanted: LSSR, in [0, 1).
    delta: the suggestion.
    lssr: what it gives.
    curves: by label.
  """

  wanted: float
  delta: float
  lssr: float
  curves: Mapping[str, Curve]


def plot(suggestion: Suggestion) -> Plot:
  """LSSR over delta, and the suggestion."""
  curves = [
    Line(
      label,
      curve.deltas,
      curve.lssr,
      palette.series(i)._replace(marker=''),
      steps='pre',
    )
    for i, (label, curve) in enumerate(suggestion.curves.items())
  ]
  deltas = [curve.deltas for curve in suggestion.curves.values()]
  x = figure.logarithmic([*deltas, [suggestion.delta]], 'delta (no unit)')
  wanted = [suggestion.wanted] * 2
  point = Line(
    f'delta {suggestion.delta}',
    [suggestion.delta],
    [suggestion.lssr],
    Look('ink', width=0, marker='o', size=6),
  )
  marks = [*curves, Line('wanted', x.limits, wanted, palette.DOTTED), point]
  title = 'LSSR (local steps / steps)'
  return Plot(
    'delta',
    'LSSR as a function of delta',
    'The share of steps that stay local for each delta, by the gradient '
    'changes recorded under BSP, and with the deltas that were tried.',
    [Panel(title, x, Axis((-0.02, 1.02)), marks, height=280)],
  )


def write(
  suggestion: Suggestion,
  table: Sequence[Sequence[str]],
  subtitle: str,
  out: pathlib.Path,
) -> pathlib.Path:
  """Writes the figure and the page.

  Args:
    suggestion: to draw.
    table: the head, then a row for each delta.
    subtitle: of the page.
    out: folder, created if it is missing.

  Returns:
    The page.
  """
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
