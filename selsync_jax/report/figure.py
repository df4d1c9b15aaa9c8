"""The content of a figure, independent of the library that draws it.

A figure is panels of marks. `png` draws it into a file, and `interactive`
describes it to the page's script.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Values: TypeAlias = Any
"""A sequence or an array of numbers."""


class Look(NamedTuple):
  """The look of a line.

  Attributes:
    color: a name in the palette.
    width: the width in pixels; 0 for markers without a line.
    dash: lengths of dashes and gaps, as multiples of the width.
    marker: matplotlib's name of the marker; empty for none.
    size: the marker's size in pixels.
    opacity: the marker's opacity, in (0, 1].
  """

  color: str
  width: float = 1.6
  dash: tuple[float, ...] = ()
  marker: str = ''
  size: float = 4
  opacity: float = 1


# All marks of one name share an entry of the legend, which shows and hides
# them. `hover` is the text at the pointer, with placeholders for values; `None`
# means `name: {y}`, and '' no text.


class Line(NamedTuple):
  """Points joined by a line.

  Attributes:
    name: the entry of the legend.
    x: the points' x.
    y: the points' y; NaN leaves a gap.
    look: the look of the line.
    steps: '' for a straight line from point to point, or matplotlib's 'mid' or
      'pre' for steps.
    hover: the text at the pointer, which may contain `{x}` and `{y}`.
  """

  name: str
  x: Values
  y: Values
  look: Look
  steps: str = ''
  hover: str | None = None


class Band(NamedTuple):
  """An area between two lines.

  Attributes:
    name: the entry of the legend.
    x: the points' x.
    low: the lower edge.
    high: the upper edge.
    color: a name in the palette.
    hover: the text at the pointer, which may contain `{low}` and `{high}`.
  """

  name: str
  x: Values
  low: Values
  high: Values
  color: str
  hover: str | None = '{low} to {high}'


class Bars(NamedTuple):
  """Bars that stand on 0.

  Attributes:
    name: the entry of the legend.
    x: the bars' middles.
    y: the bars' heights.
    widths: the bars' widths in units of x.
    color: a name in the palette.
    hover: the text at the pointer, which may contain `{x}` and `{y}`.
  """

  name: str
  x: Values
  y: Values
  widths: Values
  color: str
  hover: str | None = None


class Spans(NamedTuple):
  """Horizontal bars from one x to another.

  Attributes:
    name: the entry of the legend.
    rows: the y of each bar.
    starts: the x where each bar begins.
    stops: the x where each bar ends.
    color: a name in the palette.
    texts: the texts inside the bars, shown where there is room.
    hover: the text at the pointer, which may contain `{row}`, `{low}`, `{high}`
      and `{text}`.
  """

  name: str
  rows: Values
  starts: Values
  stops: Values
  color: str
  texts: Sequence[str]
  hover: str


Mark: TypeAlias = Line | Band | Bars | Spans
OPACITY = 0.25  # The opacity of a band.


class Axis(NamedTuple):
  """One axis of a panel.

  Attributes:
    limits: the values at its ends; the first may be the larger one.
    label: the quantity; empty for a y axis, which has the panel's title.
    unit: the unit of the ticks, after an SI prefix.
    log: whether the axis is logarithmic.
    ticks: the approximate number of ticks; 0 for none.
    names: the labels of ticks at 0, 1, ..., instead of numbers.
  """

  limits: tuple[float, float]
  label: str = ''
  unit: str = ''
  log: bool = False
  ticks: int = 4
  names: Sequence[str] = ()

  @property
  def has_prefixes(self) -> bool:
    """Whether the ticks have SI prefixes: 30 k, 20 MB."""
    return not self.log and bool(self.unit or max(self.limits) >= 1000)


class Panel(NamedTuple):
  """Marks on a pair of axes.

  Attributes:
    title: the text above the panel.
    x: the horizontal axis.
    y: the vertical axis.
    marks: the marks, from back to front.
    height: the height of the area between the axes, in pixels.
  """

  title: str
  x: Axis
  y: Axis
  marks: Sequence[Mark]
  height: int = 190

  @property
  def drawn(self) -> list[Mark]:
    """The marks that have at least one point."""
    return [mark for mark in self.marks if len(mark[1])]


class Plot(NamedTuple):
  """A figure.

  Attributes:
    name: the stem of its file's name, and its id in the page.
    title: the heading, which screen readers read too.
    caption: the text that explains the figure.
    panels: the panels, one or more.
    columns: the largest number of panels side by side; 0 for panels on top of
      each other that share their x axis.
    compares_x: whether the pointer shows all marks at its x, or only the
      nearest mark.
  """

  name: str
  title: str
  caption: str
  panels: Sequence[Panel]
  columns: int = 1
  compares_x: bool = True

  @property
  def legend(self) -> dict[str, Mark]:
    """The first mark of each name; empty if there is only one name."""
    entries: dict[str, Mark] = {}
    for panel in self.panels:
      for mark in panel.drawn:
        # A line shows more of the look than the band around it.
        if mark.name not in entries or isinstance(entries[mark.name], Band):
          entries[mark.name] = mark
    return entries if len(entries) > 1 else {}


def known(values: Sequence[Values]) -> Values:
  """Returns all finite values of several arrays."""
  joined = np.concatenate([[], *(np.asarray(each, float) for each in values)])
  return joined[np.isfinite(joined)]


def from_zero(
  values: Sequence[Values], label: str = '', unit: str = '', ticks: int = 4
) -> Axis:
  """Returns an axis from 0 to slightly above the data."""
  top = 1.04 * max(known(values), default=0)
  return Axis((0, top or 1), label, unit, ticks=ticks)


def spanning(values: Sequence[Values]) -> Axis:
  """Returns an axis around the data.

  It is logarithmic if all values are positive, the largest is above 1, and they
  span a factor of ten.
  """
  data = known(values)
  low, high = (data.min(), data.max()) if len(data) else (0, 1)
  if low > 0 and high > max(1, 10 * low):
    return logarithmic([data])
  margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
  return Axis((low - margin, high + margin))


def logarithmic(
  values: Sequence[Values], label: str = '', unit: str = ''
) -> Axis:
  """Returns a logarithmic axis around data that is positive."""
  data = known(values)
  margin = 1.05 * (data.max() / data.min()) ** 0.02
  limits = data.min() / margin, data.max() * margin
  return Axis(limits, label, unit, log=True, ticks=6)


def columns(marks: Sequence[Mark]) -> list[Values]:
  """Returns the y values of all lines."""
  return [mark.y for mark in marks if isinstance(mark, Line)]


def strip_height(count: int) -> int:
  """Returns the height in pixels of each of `count` stacked panels."""
  return max(36, min(76, 480 // count))
