"""PNG files of figures, which matplotlib draws in the colors of light mode."""

from collections.abc import Iterable
import math
import pathlib
from typing import Any

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.backends import backend_agg
from matplotlib.figure import Figure

from selsync_jax.report import figure
from selsync_jax.report.layout import boxes
from selsync_jax.report.layout import LEFT
from selsync_jax.report.layout import WIDE
from selsync_jax.report.palette import LIGHT
from selsync_jax.runs import files

FOLDER = 'plots'
LEGEND = 20  # The height of a row of the legend, in pixels.

_SETTINGS = {
  'axes.axisbelow': True,
  'axes.edgecolor': LIGHT['muted'],
  'axes.grid': True,
  'axes.labelcolor': LIGHT['muted'],
  'axes.labelsize': 11,
  'axes.spines.right': False,
  'axes.spines.top': False,
  'axes.titlecolor': LIGHT['ink'],
  'axes.titlelocation': 'left',
  'axes.titlesize': 12,
  'font.size': 11,
  'grid.color': LIGHT['rule'],
  'grid.linewidth': 0.8,
  'legend.fontsize': 11,
  'legend.frameon': False,
  'legend.handlelength': 2.6,
  'path.simplify': False,  # `lines` has thinned the lines.
  'text.color': LIGHT['ink'],
  'xtick.color': LIGHT['muted'],
  'ytick.color': LIGHT['muted'],
  'xtick.major.size': 3,
  'ytick.major.size': 0,
}


def write(plots: Iterable[figure.Plot], out: pathlib.Path) -> None:
  """Writes the figures as `out/plots/*.png`, two dots per pixel."""
  folder = out / FOLDER
  folder.mkdir(parents=True, exist_ok=True)
  for plot in plots:
    with matplotlib.rc_context(_SETTINGS):
      drawn = draw(plot)
      backend_agg.FigureCanvasAgg(drawn)
      with files.replaced(folder / f'{plot.name}.png') as temporary:
        drawn.savefig(temporary, format='png', dpi=144)


def draw(plot: figure.Plot) -> Figure:
  """Draws a figure as on a wide screen."""
  height, places = boxes(plot, WIDE)
  legend = plot.legend
  head = LEGEND * math.ceil(len(legend) / WIDE.columns)
  total = height + head
  drawn = Figure(figsize=(WIDE.width / 72, total / 72))
  handles: dict[str, Any] = {}
  for panel, box in zip(plot.panels, places, strict=True):
    bottom = height - box.top - box.height
    axes = drawn.add_axes(
      (
        box.left / WIDE.width,
        bottom / total,
        box.width / WIDE.width,
        box.height / total,
      )
    )
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
      [name.replace('$', r'\$') for name in legend],
      loc='upper left',
      bbox_to_anchor=(LEFT / WIDE.width, 1),
      ncols=WIDE.columns,
      borderaxespad=0.3,
      borderpad=0,
      columnspacing=2.0,
    )
  return drawn


def _fill(axes: Axes, panel: figure.Panel) -> list[Any]:
  """Draws a panel; returns the artist of each mark."""
  axes.set_title(panel.title)
  axes.set_xlabel(panel.x.label)
  for axis, described in ((axes.xaxis, panel.x), (axes.yaxis, panel.y)):
    _set_axis(axis, described)
  return [_draw(axes, mark, depth) for depth, mark in enumerate(panel.drawn, 2)]


def _draw(axes: Axes, mark: figure.Mark, depth: int) -> Any:
  """Draws a mark; returns its artist, which the legend shows."""
  match mark:
    case figure.Line(_, x, y, look, steps):
      step = f'steps-{steps}' if steps else 'default'
      every = max(1, len(x) // 12) if look.width else 1
      (line,) = axes.plot(
        x, y, **_style(look), drawstyle=step, markevery=every, zorder=depth
      )
      return line
    case figure.Band(_, x, low, high, color):
      return axes.fill_between(
        x,
        low,
        high,
        color=LIGHT[color],
        alpha=figure.OPACITY,
        linewidth=0,
        zorder=depth,
      )
    case figure.Bars(_, x, y, widths, color):
      return axes.bar(x, y, widths, color=LIGHT[color], zorder=depth)
    case figure.Spans(_, rows, starts, stops, color, texts):
      lengths = [b - a for a, b in zip(starts, stops, strict=True)]
      bars = axes.barh(
        rows,
        lengths,
        left=starts,
        height=0.72,
        color=LIGHT[color],
        edgecolor=LIGHT['paper'],
        linewidth=0.5,
        zorder=depth,
      )
      low, high = axes.get_xlim()
      room = axes.get_position().width * WIDE.width / (high - low) / 8
      shown = [
        text if length * room > len(text) else ''
        for text, length in zip(texts, lengths, strict=True)
      ]
      color, size = LIGHT['paper'], 10
      axes.bar_label(
        bars, shown, label_type='center', color=color, size=size, zorder=depth
      )
      return bars


def _style(look: figure.Look) -> dict[str, Any]:
  return {
    'color': LIGHT[look.color],
    'linewidth': look.width,
    'linestyle': (0, look.dash) if look.dash else '-' if look.width else '',
    'marker': look.marker,
    'markersize': look.size,
    'alpha': look.opacity,
    'clip_on': look.width > 0,  # Draws a marker at the edge whole.
  }


def _set_axis(axis: Any, described: figure.Axis) -> None:
  axis.axes.set(**{f'{axis.axis_name}lim': described.limits})
  if described.log:
    axis.axes.set(**{f'{axis.axis_name}scale': 'log'})
    _log_ticks(axis, described)
  elif described.names:
    axis.set_ticks(range(len(described.names)), described.names)
    axis.grid(False)
  elif described.ticks:
    axis.set_major_locator(
      ticker.MaxNLocator(described.ticks, steps=[1, 2, 5, 10], min_n_ticks=1)
    )
    if described.has_prefixes:
      axis.set_major_formatter(ticker.EngFormatter(described.unit))
  else:
    axis.set_ticks([])
    axis.axes.spines[['left', 'bottom']].set_visible(False)


def _log_ticks(axis: Any, described: figure.Axis) -> None:
  """Sets ticks at powers of ten; on a short axis, 2 and 5 times these too."""
  low, high = described.limits
  subs = (1, 2, 5) if high < 100 * low else (1,)
  axis.set_major_locator(ticker.LogLocator(subs=subs, numticks=described.ticks))
  axis.set_minor_locator(ticker.NullLocator())
  if described.unit:
    axis.set_major_formatter(ticker.EngFormatter(described.unit))
  else:
    axis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f'{y:g}'))
