"""Files of figures, which matplotlib draws in the colors of light mode."""

from collections.abc import Iterable, Sequence
import math
import pathlib
from typing import Any

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.backends import backend_agg
from matplotlib.figure import Figure
import numpy as np

from selsync_jax.report import figure
from selsync_jax.report.figure import LIGHT
from selsync_jax.report.figure import WIDE
from selsync_jax.runs import files

FOLDER = 'plots'
# Of the legend, in pixels: the height of a row, the width of a character, and
# that of a mark with the space around it.
LEGEND, CHARACTER, HANDLE = 20, 6.5, 62

_SETTINGS = {
  **dict.fromkeys(('axes.edgecolor', 'axes.labelcolor'), LIGHT['muted']),
  **dict.fromkeys(('xtick.color', 'ytick.color'), LIGHT['muted']),
  **dict.fromkeys(('axes.titlecolor', 'text.color'), LIGHT['ink']),
  **dict.fromkeys(('axes.labelsize', 'font.size', 'legend.fontsize'), 11),
  **dict.fromkeys(('axes.spines.right', 'axes.spines.top'), False),
  **dict.fromkeys(('axes.axisbelow', 'axes.grid'), True),
  'axes.titlelocation': 'left',
  'axes.titlesize': 12,
  'grid.color': LIGHT['rule'],
  'grid.linewidth': 0.8,
  'legend.frameon': False,
  'legend.handlelength': 2.6,
  'pdf.fonttype': 42,  # TrueType, which publishers want.
  'svg.hashsalt': 'selsync',  # Equal figures are equal files.
  'path.simplify': False,  # `figure` has thinned the lines.
  'xtick.major.size': 3,
  'ytick.major.size': 0,
}


_UNDATED = {'png': {}, 'svg': {'Date': None}, 'pdf': {'CreationDate': None}}


def write(
  plots: Iterable[figure.Plot],
  out: pathlib.Path,
  formats: Sequence[str] = ('png',),
) -> None:
  """Writes the figures as `out/plots/*`, PNG with two dots per pixel.

  `formats` may also have `svg` and `pdf`.
  """
  folder = out / FOLDER
  folder.mkdir(parents=True, exist_ok=True)
  for plot in plots:
    with matplotlib.rc_context(_SETTINGS):
      drawn = draw(plot)
      backend_agg.FigureCanvasAgg(drawn)
      for kind in formats:
        about = {'format': kind, 'dpi': 144, 'metadata': _UNDATED[kind]}
        with files.replaced(folder / f'{plot.name}.{kind}') as temporary:
          drawn.savefig(temporary, **about)


def draw(plot: figure.Plot) -> Figure:
  """Draws a figure as on a wide screen."""
  height, places = plot.boxes(WIDE)
  legend = plot.legend
  columns = _legend_columns(list(legend))
  total = height + LEGEND * math.ceil(len(legend) / columns)
  drawn = Figure(figsize=(WIDE.width / 72, total / 72))
  handles: dict[str, Any] = {}
  for panel, box in zip(plot.panels, places, strict=True):
    left, width = box.left / WIDE.width, box.width / WIDE.width
    bottom = (height - box.top - box.height) / total
    axes = drawn.add_axes((left, bottom, width, box.height / total))
    artists = _fill(axes, panel)
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
      _literal(legend),
      loc='upper left',
      bbox_to_anchor=(figure.LEFT / WIDE.width, 1),
      ncols=columns,
      borderaxespad=0.3,
      borderpad=0,
      columnspacing=2.0,
    )
  return drawn


def _legend_columns(names: Sequence[str]) -> int:
  """Returns the largest number of columns in which the names have room."""
  room = WIDE.width - figure.LEFT
  for columns in range(WIDE.columns, 1, -1):
    split = np.array_split(names, columns)
    widths = [max(map(len, column), default=0) * CHARACTER for column in split]
    if sum(widths) + HANDLE * columns <= room:
      return columns
  return 1


def _fill(axes: Axes, panel: figure.Panel) -> list[Any]:
  """Draws a panel; returns the artist of each mark."""
  axes.set_title(panel.title)
  axes.set_xlabel(panel.x.label)
  _set_axis(axes.xaxis, panel.x)
  _set_axis(axes.yaxis, panel.y)
  return [_draw(axes, mark, depth) for depth, mark in enumerate(panel.drawn, 2)]


def _draw(axes: Axes, mark: figure.Mark, depth: int) -> Any:
  """Draws a mark; returns its artist, which the legend shows."""
  if isinstance(mark, figure.Line):
    look = mark.look
    (line,) = axes.plot(
      mark.x,
      mark.y,
      color=LIGHT[look.color],
      linewidth=look.width,
      linestyle=(0, look.dash) if look.dash else '-' if look.width else '',
      drawstyle=f'steps-{mark.steps}' if mark.steps else 'default',
      marker=look.marker,
      markersize=look.size,
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
      room = axes.get_position().width * WIDE.width / (high - low) / 8
      shown = [
        text if length * room > len(text) else ''
        for text, length in zip(texts, lengths, strict=True)
      ]
      paper = LIGHT['paper']
      axes.bar_label(
        bars, shown, label_type='center', color=paper, size=10, zorder=depth
      )
      return bars


def _literal(names: Iterable[str]) -> list[str]:
  """Returns texts of which matplotlib reads no part as a formula."""
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
