"""Files of figures, which matplotlib draws in the colors of light mode."""

from collections.abc import Iterable, Sequence
import dataclasses
import pathlib
import textwrap
from typing import Any

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.backends import backend_agg, backend_pdf
from matplotlib.figure import Figure
import numpy as np

from selsync_jax.report import figure
from selsync_jax.report.figure import LIGHT, POINTS, WIDE
from selsync_jax.runs import files

FOLDER = 'plots'
COLUMN = 'column'
"""The folder of figures for a paper's column."""
# Sizes in the legend, in pixels: the height of a line, and the width of a mark
# with the space around it.
LEGEND, HANDLE = 17, 62

_SETTINGS = {
  **dict.fromkeys(('axes.edgecolor', 'axes.labelcolor'), LIGHT['muted']),
  **dict.fromkeys(('xtick.color', 'ytick.color'), LIGHT['muted']),
  **dict.fromkeys(('axes.titlecolor', 'text.color'), LIGHT['ink']),
  **dict.fromkeys(('axes.spines.right', 'axes.spines.top'), False),
  **dict.fromkeys(('axes.axisbelow', 'axes.grid'), True),
  'axes.titlelocation': 'left',
  'grid.color': LIGHT['rule'],
  'legend.frameon': False,
  'legend.handlelength': 2.6,
  'pdf.fonttype': 42,  # TrueType, which publishers want.
  'svg.hashsalt': 'selsync',  # Equal figures are equal files.
  'path.simplify': False,  # `figure` has thinned the lines.
  'ytick.major.size': 0,
}
_PIXELS = {
  **dict.fromkeys(('axes.labelsize', 'font.size', 'legend.fontsize'), 11),
  **dict.fromkeys(('axes.linewidth', 'grid.linewidth'), 0.8),
  **dict.fromkeys(('xtick.major.pad', 'ytick.major.pad'), 3.5),
  'axes.labelpad': 4,
  'axes.titlepad': 6,
  'axes.titlesize': 12,
  'xtick.major.size': 3,
  'xtick.major.width': 0.8,
}
_SETTINGS |= {name: POINTS * pixels for name, pixels in _PIXELS.items()}
_UNDATED = {'png': {}, 'svg': {'Date': None}, 'pdf': {'CreationDate': None}}


@matplotlib.rc_context(_SETTINGS)
def write(
  plots: Iterable[figure.Plot],
  out: pathlib.Path,
  formats: Sequence[str] = ('png',),
  columns: bool = False,
) -> None:
  """Writes the figures as `out/plots/*`, PNG with two dots per pixel.

  `formats` may also have `svg` and `pdf`. With `columns`, it also writes
  `out/plots/column/*.pdf` for a paper's column, where panels that stand side by
  side on a wide screen have a page each.
  """
  folder = out / FOLDER
  folder.mkdir(parents=True, exist_ok=True)
  if columns:
    (folder / COLUMN).mkdir(exist_ok=True)
  for plot in plots:
    drawn = draw(plot)
    backend_agg.FigureCanvasAgg(drawn)
    for kind in formats:
      about = {'format': kind, 'metadata': _UNDATED[kind]}
      with files.replaced(folder / f'{plot.name}.{kind}') as temporary:
        drawn.savefig(temporary, dpi=2 * 72 / POINTS, **about)
    if columns:
      with (
        files.replaced(folder / COLUMN / f'{plot.name}.pdf') as temporary,
        backend_pdf.PdfPages(temporary, metadata=_UNDATED['pdf']) as pages,
      ):
        for part in _parts(plot):
          pages.savefig(draw(part, figure.NARROW))


def _parts(plot: figure.Plot) -> list[figure.Plot]:
  """Splits a figure into panels, unless they share their x axis."""
  if not plot.columns:
    return [plot]
  title = plot.panels[0].title  # The others may lack theirs.
  return [
    dataclasses.replace(
      plot, panels=[panel._replace(title=panel.title or title)]
    )
    for panel in plot.panels
  ]


@matplotlib.rc_context(_SETTINGS)
def draw(plot: figure.Plot, layout: figure.Layout = WIDE) -> Figure:
  """Draws a figure in a layout."""
  height, places = plot.boxes(layout)
  legend = plot.legend
  indent = figure.LEFT if layout.columns > 1 else 0
  names, columns = _arrange(list(legend), layout.width - indent)
  columned = np.array_split([name.count('\n') + 1 for name in names], columns)
  total = height + LEGEND * max(map(sum, columned))
  inch = 72 / POINTS
  drawn = Figure(figsize=(layout.width / inch, total / inch))
  handles: dict[str, Any] = {}
  for panel, box in zip(plot.panels, places, strict=True):
    left, width = box.left / layout.width, box.width / layout.width
    bottom = (height - box.top - box.height) / total
    axes = drawn.add_axes((left, bottom, width, box.height / total))
    artists = _fill(axes, panel, box)
    if not plot.columns and panel is not plot.panels[-1]:
      axes.tick_params(labelbottom=False)
      axes.set_xlabel('')
    # matplotlib's own legend lacks names that begin with `_`.
    for mark, artist in zip(panel.drawn, artists, strict=True):
      if legend.get(mark.name) is mark:
        handles[mark.name] = artist
  if legend:
    drawn.legend(
      [handles[name] for name in legend],
      _literal(names),
      loc='upper left',
      bbox_to_anchor=(indent / layout.width, 1),
      ncols=columns,
      borderaxespad=0.3,
      borderpad=0,
      columnspacing=2.0,
    )
  return drawn


def _arrange(names: Sequence[str], room: float) -> tuple[list[str], int]:
  """Returns the names, wrapped, and the number of columns that fit."""
  most = int((room - HANDLE) / figure.CHARACTER)
  wrapped = [textwrap.fill(name, most) for name in names]
  for columns in range(WIDE.columns, 1, -1):
    split = np.array_split(names, columns)
    longest = [max(map(len, column), default=0) for column in split]
    if figure.CHARACTER * sum(longest) + HANDLE * columns <= room:
      return wrapped, columns
  return wrapped, 1


def _fill(axes: Axes, panel: figure.Panel, box: figure.Box) -> list[Any]:
  """Draws a panel; returns the artist of each mark."""
  axes.set_title(panel.title)
  axes.set_xlabel(panel.x.label)
  _set_axis(axes.xaxis, panel.x)
  _set_axis(axes.yaxis, panel.y)
  for name, right, up in figure.place(panel, box.width, box.height):
    axes.annotate(
      _literal([name.text])[0],
      (name.x, name.y),
      (POINTS * figure.GAP * right, POINTS * figure.GAP * up),
      textcoords='offset points',
      ha=figure.ACROSS[right],
      va=figure.ALONG[up],
      zorder=len(panel.marks) + 2,
    )
  return [
    _draw(axes, mark, depth, box) for depth, mark in enumerate(panel.drawn, 2)
  ]


def _draw(axes: Axes, mark: figure.Mark, depth: int, box: figure.Box) -> Any:
  """Draws a mark; returns its artist, which the legend shows."""
  if isinstance(mark, figure.Line):
    look = mark.look
    (line,) = axes.plot(
      mark.x,
      mark.y,
      color=LIGHT[look.color],
      linewidth=POINTS * look.width,
      linestyle=(0, look.dash) if look.dash else '-' if look.width else '',
      drawstyle=f'steps-{mark.steps}' if mark.steps else 'default',
      marker=look.marker,
      markersize=POINTS * look.size,
      markevery=max(1, len(mark.x) // 12) if look.width else 1,
      alpha=look.opacity,
      clip_on=look.width > 0,  # Draws a marker at the edge whole.
      zorder=depth,
    )
    return line
  style: dict[str, Any] = {'color': LIGHT[mark.color], 'zorder': depth}
  match mark:
    case figure.Band(_, x, low, high):
      shade = {'alpha': figure.OPACITY, 'linewidth': 0}
      return axes.fill_between(x, low, high, **style, **shade)
    case figure.Bars(_, x, y, widths):
      return axes.bar(x, y, widths, **style)
    case figure.Spans(_, rows, starts, stops, _, texts):
      lengths = [b - a for a, b in zip(starts, stops, strict=True)]
      style |= {'edgecolor': LIGHT['paper'], 'linewidth': 0.5}
      bars = axes.barh(rows, lengths, left=starts, height=0.72, **style)
      low, high = axes.get_xlim()
      room = box.width / (high - low) / 8
      shown = [
        text if length * room > len(text) else ''
        for text, length in zip(texts, lengths, strict=True)
      ]
      paper = LIGHT['paper']
      axes.bar_label(
        bars, shown, label_type='center', color=paper, zorder=depth
      )
      return bars


def _literal(names: Iterable[str]) -> list[str]:
  """Escapes texts, so that matplotlib reads no part as a formula."""
  return [name.replace('$', r'\$') for name in names]


def _set_axis(axis: Any, described: figure.Axis) -> None:
  axis.axes.set(**{f'{axis.axis_name}lim': described.limits})
  ticks = described.ticks
  if described.names:
    axis.set_ticks(range(len(described.names)), _literal(described.names))
    axis.grid(False)
    return
  if not ticks:
    axis.set_ticks([])
    axis.axes.spines[['left', 'bottom']].set_visible(False)
    return
  locator = ticker.MaxNLocator(
    ticks, steps=[1, 2, 5, 10], min_n_ticks=1, integer=described.whole
  )
  if described.log:
    axis.axes.set(**{f'{axis.axis_name}scale': 'log'})
    subs = (1, 2, 5) if described.is_short else (1,)
    locator = ticker.LogLocator(subs=subs, numticks=ticks)
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f'{y:g}'))
  axis.set_major_locator(locator)
  if described.has_prefixes:
    axis.set_major_formatter(ticker.EngFormatter(described.unit))
