"""The content of a figure, independent of the library that draws it.

A figure is panels of marks, and derives the ranges of their axes from the
marks. `image_files` draws it into files, and `interactive` describes it to the
page's script. All sizes are CSS pixels.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
from typing import Any, Literal, NamedTuple, TypeAlias

from jaxtyping import Float, Int
import numpy as np

Values: TypeAlias = Any
"""A sequence or an array of numbers."""


class Look(NamedTuple):
  """The look of a line."""

  color: str  # A name in the palette.
  width: float = 1.6  # 0 for markers without a line.
  dash: tuple[float, ...] = ()  # Dashes and gaps, as multiples of the width.
  marker: str = ''  # matplotlib's name of the marker; empty for none.
  size: float = 4  # The marker's size.
  opacity: float = 1  # The marker's opacity, in (0, 1].


# The palette of Okabe and Ito, `Color Universal Design`, 2008. By name: the
# color in light mode, and in dark mode.
_COLORS = {
  'paper': ('#ffffff', '#14171b'),
  'ink': ('#1f2329', '#e8ebee'),
  'muted': ('#5c6670', '#9aa5b0'),
  'rule': ('#dde2e7', '#2d343b'),
  'blue': ('#0072b2', '#4fa8e8'),
  'vermillion': ('#d55e00', '#f2803a'),
  'green': ('#009e73', '#2ac79b'),
  'purple': ('#cc79a7', '#dd96bf'),
  'orange': ('#e69f00', '#f0b42f'),
  'sky': ('#56b4e9', '#a5d8f8'),
}
LIGHT, DARK = ({k: v[i] for k, v in _COLORS.items()} for i in (0, 1))
# Series differ in dashes and markers as well.
SERIES = ('blue', 'vermillion', 'green', 'purple', 'orange', 'sky')
DASHES = ((), (5, 2), (1, 1.5), (5, 2, 1, 2))
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')

DOTTED = Look('muted', dash=(1, 3))
THIN = Look('muted', width=0.8)


def series(i: int) -> Look:
  """Returns color, dashes and marker of the i-th series."""
  color, dash = SERIES[i % len(SERIES)], DASHES[i % len(DASHES)]
  return Look(color, dash=dash, marker=MARKERS[i % len(MARKERS)])


# All marks of one name share an entry of the legend, which shows and hides
# them. `hover` is the text at the pointer, with placeholders for values; `None`
# means `name: {y}`, and '' no text.


class Line(NamedTuple):
  """Points joined by a line; NaN in `y` leaves a gap."""

  name: str
  x: Values  # Infinite values are drawn at the ends of the axis.
  y: Values
  look: Look
  steps: str = ''  # matplotlib's 'mid' or 'pre'; '' for a straight line.
  hover: str | None = None  # May contain `{x}` and `{y}`.


class Band(NamedTuple):
  """An area between two lines."""

  name: str
  x: Values
  low: Values
  high: Values
  color: str
  hover: str | None = '{low} to {high}'


class Bars(NamedTuple):
  """Bars that stand on 0."""

  name: str
  x: Values  # The bars' middles.
  y: Values  # The bars' heights.
  widths: Values  # The bars' widths, in units of x.
  color: str
  hover: str | None = None  # May contain `{x}` and `{y}`.


class Spans(NamedTuple):
  """Horizontal bars from one x to another."""

  name: str
  rows: Values  # The y of each bar.
  starts: Values
  stops: Values
  color: str
  texts: Sequence[str]  # The texts inside the bars, shown where there is room.
  hover: str  # May contain `{row}`, `{low}`, `{high}` and `{text}`.


Mark: TypeAlias = Line | Band | Bars | Spans
OPACITY = 0.25  # The opacity of a band.


def finite(values: Iterable[Values]) -> Float[np.ndarray, 'values']:
  """Returns all finite values of several arrays."""
  joined = np.concatenate([[], *(np.asarray(each, float) for each in values)])
  return joined[np.isfinite(joined)]


_WIDE = 10.0  # The least ratio of the ends of a wide range.


@dataclasses.dataclass(frozen=True, eq=False)
class Axis:
  """One axis of a panel; panels that hold the same axis share its range.

  Without limits, an axis shows all lines and bars of its panels. Its `kind`
  says how: `around` them, or from `zero`. A `cost` is shown from zero too. For
  a wide range of positive values, `around` and `cost` are logarithmic.
  """

  limits: tuple[float, float] = (math.nan, math.nan)  # May descend.
  label: str = ''  # Empty for a y axis, which has the panel's title.
  unit: str = ''  # The unit of the ticks, after an SI prefix.
  kind: Literal['around', 'zero', 'cost'] = 'around'
  log: bool = False  # Whether the axis is logarithmic.
  ticks: int = 4  # The approximate number of ticks; 0 for none.
  names: Sequence[str] = ()  # Labels of rows 0, 1, ... from the top.
  whole: bool = False  # Whether only whole numbers have ticks.
  covers: Sequence[Values] = ()  # More values that the axis shows.

  def around(self, values: Sequence[Values]) -> 'Axis':
    """Returns the axis with limits that show these values."""
    if not math.isnan(self.limits[0]):
      return self
    shown = finite(values)
    low, high = (shown.min(), shown.max()) if len(shown) else (0, 1)
    is_wide = low > 0 and high > _WIDE * low
    is_wide &= self.kind == 'cost' or high > 1
    if self.names:
      limits = len(self.names) - 0.5, -0.5
    elif self.log or (is_wide and self.kind != 'zero'):
      margin = 1.05 * (high / low) ** 0.02
      limits = low / margin, high * margin
      return dataclasses.replace(self, limits=limits, log=True, ticks=6)
    elif self.kind == 'around':
      margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
      limits = low - margin, high + margin
    else:
      limits = 0, 1.04 * high or 1
    return dataclasses.replace(self, limits=limits)

  @property
  def has_prefixes(self) -> bool:
    """Whether the ticks have SI prefixes: 30 k, 20 MB."""
    return bool(self.unit or (not self.log and max(self.limits) >= 1000))

  @property
  def is_short(self) -> bool:
    """Whether a logarithmic axis has ticks at 2 and 5 times powers of ten."""
    low, high = self.limits
    return bool(high < 100 * low)

  def fraction(self, value: float) -> float:
    """Returns the place of a value on the axis, 0 at its first limit."""
    low, high = self.limits
    if self.log:
      return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


SHARE = Axis((-0.02, 1.02))
"""The axis of a share."""


class Name(NamedTuple):
  """A text beside a point."""

  text: str
  x: float
  y: float
  entry: str  # The entry of the legend that hides it.


class Panel(NamedTuple):
  """Marks, from back to front, on a pair of axes."""

  title: str
  x: Axis
  y: Axis
  marks: Sequence[Mark] = ()
  height: int = 190  # The height of the area between the axes.
  names: Sequence[Name] = ()  # The most important one first.

  @property
  def drawn(self) -> list[Mark]:
    """The marks that have at least one point."""
    return [mark for mark in self.marks if len(mark[1])]


class Layout(NamedTuple):
  """The width of a figure, and the largest number of panels side by side."""

  width: float
  columns: int


POINTS = 0.75  # Points of a CSS pixel in a file.
WIDE = Layout(1080, 4)
# For a phone, and for a paper's column of 3.3 inches.
NARROW = Layout(72 * 3.3 / POINTS, 1)
CHARACTER, LINE = 6.5, 14  # Mean width and height of small text.
GAP = 7  # From the middle of a point to its name.
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 26, 42  # Margins of a panel.


class Box(NamedTuple):
  """The area between a panel's axes, from the figure's upper left corner."""

  left: float
  top: float
  width: float
  height: int


@dataclasses.dataclass
class Plot:
  """A figure, which gives its panels the limits of their axes."""

  name: str  # The stem of its file's name, and its id in the page.
  title: str  # The heading, which screen readers read too.
  caption: str
  panels: Sequence[Panel]
  # The largest number of panels side by side; 0 for panels on top of each other
  # that share their x axis.
  columns: int = 1
  # Whether the pointer shows all marks at its x, or only the nearest mark.
  compares_x: bool = True

  def __post_init__(self):
    values: dict[Axis, list[Values]] = collections.defaultdict(list)
    for panel in self.panels:
      for axis in (panel.x, panel.y):
        values[axis] += axis.covers
      for mark in panel.marks:
        if isinstance(mark, Line | Bars):
          values[panel.x].append(mark.x)
          values[panel.y].append(mark.y)
    ends = {axis: axis.around(shown) for axis, shown in values.items()}
    self.panels = [
      panel._replace(
        x=ends[panel.x],
        y=ends[panel.y],
        marks=[_inside(mark, ends[panel.x]) for mark in panel.marks],
      )
      for panel in self.panels
    ]

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

  def boxes(self, layout: Layout) -> tuple[int, list[Box]]:
    """Returns the height of the figure, and the place of each panel."""
    columns = min(self.columns or 1, len(self.panels), layout.columns)
    below = BOTTOM if self.columns else 0
    width = layout.width / columns
    top, places = 0, []
    for first in range(0, len(self.panels), columns):
      panels = self.panels[first : first + columns]
      height = max(panel.height for panel in panels)
      places += [
        Box(i * width + LEFT, top + TOP, width - LEFT - RIGHT, height)
        for i in range(len(panels))
      ]
      top += TOP + height + below
    return top + BOTTOM - below, places


def _inside(mark: Mark, axis: Axis) -> Mark:
  """Returns the mark with infinite x at the ends of the axis."""
  if not (isinstance(mark, Line) and np.isinf(mark.x).any()):
    return mark
  return mark._replace(x=np.clip(mark.x, *axis.limits))


# Where a name may stand, in order of preference: to the right of its point (1)
# or to the left (-1), and above it (1) or below it (-1).
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1))
# The edge of the text that is next to the point, for either of these numbers.
ACROSS = {1: 'left', 0: 'center', -1: 'right'}
ALONG = {1: 'bottom', 0: 'center', -1: 'top'}


def place(
  panel: Panel, width: float, height: float
) -> list[tuple[Name, int, int]]:
  """Places names beside their points, without overlap; drops the others.

  A name comes with its side, one of `_SIDES`, `GAP` pixels from its point.
  """
  points = [
    (width * panel.x.fraction(name.x), height * panel.y.fraction(name.y))
    for name in panel.names
  ]
  taken = [(x - GAP, x + GAP, y - GAP, y + GAP) for x, y in points]
  placed = []
  for i, (name, (x, y)) in enumerate(zip(panel.names, points, strict=True)):
    half = CHARACTER * len(name.text) / 2, LINE / 2
    for right, up in _SIDES:
      center = x + right * (half[0] + GAP), y + up * (half[1] + GAP)
      low, high = np.subtract(center, half), np.add(center, half)
      box = low[0], high[0], low[1], high[1]
      inside = (low >= 0).all() and (high <= (width, height)).all()
      others = [*taken[:i], *taken[i + 1 :]]
      if inside and not any(_overlap(box, other) for other in others):
        taken.append(box)
        placed.append((name, right, up))
        break
  return placed


def _overlap(one, other):
  left, right, bottom, top = other
  return one[0] < right and left < one[1] and one[2] < top and bottom < one[3]


def caption(sentences: Mapping[str, Any]) -> str:
  """Joins the sentences that hold: whose value is true."""
  return ' '.join(text for text, holds in sentences.items() if holds)


def strip_height(count: int) -> int:
  """Returns the height of each of `count` stacked panels."""
  return max(36, min(76, 480 // count))


def envelope(
  y: Float[np.ndarray, 'points'], buckets: int
) -> Int[np.ndarray, 'kept']:
  """Selects the points of a long line to draw: the extremes of each bucket.

  A panel of n pixels needs about n / 2 buckets. NaN means no point.
  """
  (known,) = np.nonzero(~np.isnan(y))
  if len(known) <= 2 * buckets:
    return known
  keep = {known[0], known[-1]}
  for part in _split(known, buckets):
    keep |= {part[np.argmin(y[part])], part[np.argmax(y[part])]}
  return np.array(sorted(keep))


def quantiles(
  lines: Float[np.ndarray, 'points lines'],
  buckets: int,
  shares: Sequence[float],
) -> tuple[
  Int[np.ndarray, 'buckets'],
  Int[np.ndarray, 'buckets'],
  Float[np.ndarray, 'shares buckets'],
]:
  """Computes quantiles over the values of each bucket, `buckets` at most.

  The result is the point in the middle of each bucket, the point with its
  largest value, and its quantiles. NaN means no point, infinity is a value.
  """
  (known,) = np.nonzero(~np.isnan(lines).all(axis=1))
  parts = _split(known, min(buckets, len(known)))
  peaks = [part[np.nanargmax(np.nanmax(lines[part], axis=1))] for part in parts]
  values = []
  for part in parts:
    each = np.sort(lines[part], axis=None)  # NaN comes last.
    last = np.count_nonzero(~np.isnan(each)) - 1
    values.append(each[np.rint(np.multiply(shares, last)).astype(int)])
  middles = [part[len(part) // 2] for part in parts]
  quantiles = np.reshape(values, (len(parts), len(shares))).T
  return np.array(middles, int), np.array(peaks, int), quantiles


def _split(known, buckets):
  if not buckets:
    return []
  return np.split(known, np.arange(1, buckets) * len(known) // buckets)
