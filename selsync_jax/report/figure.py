"""What a figure shows, apart from how it is drawn.

A figure is panels of marks. `png` draws it into a file, and `interactive`
describes it to the page's script, so no figure is written twice.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Values: TypeAlias = Any
"""A sequence or an array of numbers."""


class Look(NamedTuple):
  """How a line is drawn.

  Attributes:
    color: a name in the palette.
    width: in pixels; 0 for markers without a line.
    dash: lengths of dashes and gaps, as multiples of the width.
    marker: matplotlib's name of it, or nothing.
    size: of a marker, in pixels.
    opacity: in (0, 1].
  """

  color: str
  width: float = 1.6
  dash: tuple[float, ...] = ()
  marker: str = ''
  size: float = 4
  opacity: float = 1


# Every mark has a name: its entry in the legend, which shows and hides all
# marks of that name. `hover` is what a pointer reads, with `{y}` and the like
# for values; `None` stands for `name: {y}`, and '' for nothing.


class Line(NamedTuple):
  """Points joined by a line.

  Attributes:
    name: in the legend.
    x: of the points.
    y: of the points; NaN leaves a gap.
    look: of the line.
    steps: '' for a straight line from point to point, 'mid' or 'pre' for
      steps, as matplotlib means it.
    hover: may hold `{x}` and `{y}`.
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
    name: in the legend.
    x: of the points.
    low: its lower edge.
    high: its upper edge.
    color: a name in the palette.
    hover: may hold `{low}` and `{high}`.
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
    name: in the legend.
    x: their middles.
    y: their heights.
    widths: in units of x.
    color: a name in the palette.
    hover: may hold `{x}` and `{y}`.
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
    name: in the legend.
    rows: the y of each.
    starts: the x where each begins.
    stops: the x where each ends.
    color: a name in the palette.
    texts: inside the bars, where there is room.
    hover: may hold `{row}`, `{low}`, `{high}` and `{text}`.
  """

  name: str
  rows: Values
  starts: Values
  stops: Values
  color: str
  texts: Sequence[str]
  hover: str


Mark: TypeAlias = Line | Band | Bars | Spans
OPACITY = 0.25  # Of a band.


class Axis(NamedTuple):
  """One axis of a panel.

  Attributes:
    limits: the values at its ends; the first may be the larger one.
    label: what it measures; of a y axis, the panel's title says it.
    unit: of the ticks, after an SI prefix.
    log: whether it is logarithmic.
    ticks: about how many; 0 for none.
    names: of 0, 1, ... in place of numbers.
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
    title: above the panel.
    x: axis.
    y: axis.
    marks: from back to front.
    height: between the axes, in pixels.
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
    name: of its file, and its id in the page.
    title: the heading, also read by screen readers.
    caption: how to read the figure.
    panels: at least one.
    columns: the most panels side by side; 0 for panels on top of each other
      that share their x axis.
    compares_x: whether a pointer reads all marks at its x, or only the nearest.
  """

  name: str
  title: str
  caption: str
  panels: Sequence[Panel]
  columns: int = 1
  compares_x: bool = True

  @property
  def legend(self) -> dict[str, Mark]:
    """The names of its marks, and the first mark of each; one needs none."""
    entries: dict[str, Mark] = {}
    for panel in self.panels:
      for mark in panel.drawn:
        # A line says more about the look than the band around it.
        if mark.name not in entries or isinstance(entries[mark.name], Band):
          entries[mark.name] = mark
    return entries if len(entries) > 1 else {}


def known(values: Sequence[Values]) -> Values:
  """All finite values of several arrays."""
  joined = np.concatenate([[], *(np.asarray(each, float) for each in values)])
  return joined[np.isfinite(joined)]


def from_zero(
  values: Sequence[Values], label: str = '', unit: str = '', ticks: int = 4
) -> Axis:
  """An axis from 0 to slightly above the data."""
  top = 1.04 * max(known(values), default=0)
  return Axis((0, top or 1), label, unit, ticks=ticks)


def spanning(values: Sequence[Values]) -> Axis:
  """An axis around the data.

  It is logarithmic where all values are positive, exceed 1 and span a factor of
  ten.
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
  """A logarithmic axis around data that is positive."""
  data = known(values)
  margin = 1.05 * (data.max() / data.min()) ** 0.02
  limits = data.min() / margin, data.max() * margin
  return Axis(limits, label, unit, log=True, ticks=6)


def columns(marks: Sequence[Mark]) -> list[Values]:
  """The y values of lines."""
  return [mark.y for mark in marks if isinstance(mark, Line)]


def strip_height(count: int) -> int:
  """The height of each of `count` panels on top of each other, in pixels."""
  return max(36, min(76, 480 // count))
