"""Islands that keep their own pace: slower islands rest in some steps.

If all islands take every step, each round lasts as long as the slowest island
needs. At a free pace the fastest island takes every step, and an island that
needs twice as long takes every second step. It rests in the other steps, which
count as steps but change nothing. So all islands need equally long from one
average to the next. After each average, the islands exchange how long their
steps take.

The shares are whole numbers, equal on all islands, so each knows which rest.
"""

from collections import deque
from collections.abc import Sequence
import statistics

WHOLE = 1000
"""The share of an island that takes every step."""

KEPT = 5
"""The number of times that a median is taken of."""


def plan(seconds: Sequence[float]) -> list[int]:
  """Returns the share of the steps that each island takes, up to `WHOLE`.

  >>> plan([0.1, 0.4, 0.2])
  [1000, 250, 500]
  >>> plan([0.0, 0.4])
  [1000, 1000]
  """
  fastest = min(seconds)
  if not fastest:
    return [WHOLE for _ in seconds]
  return [max(1, round(WHOLE * fastest / each)) for each in seconds]


class Watch:
  """Measures how long a repeated task of this island takes."""

  def __init__(self) -> None:
    self._seconds: deque[float] = deque(maxlen=KEPT)
    self._is_warm = False

  def add(self, seconds: float) -> None:
    """Adds a time in seconds; drops the first, which includes compilation."""
    if self._is_warm:
      self._seconds.append(seconds)
    self._is_warm = True

  @property
  def median(self) -> float:
    """The median of the last times; 0 if there is none."""
    return statistics.median(self._seconds) if self._seconds else 0.0
