"""The places of a figure's panels, in CSS pixels, by width of the screen."""

import math
from typing import NamedTuple

from selsync_jax.report.figure import Plot


class Layout(NamedTuple):
  """The size of a figure.

  Attributes:
    width: the width in pixels.
    columns: the largest number of panels side by side.
  """

  width: int
  columns: int


WIDE = Layout(1080, 4)
NARROW = Layout(388, 1)

LEFT, RIGHT, TOP, BOTTOM = 60, 14, 26, 42  # Margins of a panel, pixels.


class Box(NamedTuple):
  """The area between a panel's axes, in pixels from the figure's corner."""

  left: float
  top: float
  width: float
  height: int


def boxes(plot: Plot, layout: Layout) -> tuple[int, list[Box]]:
  """Returns the height of a figure, and the place of each panel."""
  columns = min(plot.columns or 1, len(plot.panels), layout.columns)
  rows = math.ceil(len(plot.panels) / columns)
  below = BOTTOM if plot.columns else 0
  width = layout.width / columns
  top, places = 0, []
  for row in range(rows):
    panels = plot.panels[row * columns : (row + 1) * columns]
    height = max(panel.height for panel in panels)
    places += [
      Box(i * width + LEFT, top + TOP, width - LEFT - RIGHT, height)
      for i in range(len(panels))
    ]
    top += TOP + height + below
  return top + BOTTOM - below, places
