"""The goal of a search: a target at the least cost, or the best score.

Scores are on the validation split, one for each evaluation of a run.
"""

from collections.abc import Sequence
import itertools
import math
from typing import Literal, NamedTuple


class Point(NamedTuple):
  """A step of a run: its score, and what the run had cost by then."""

  score: float  # The main metric; NaN between two evaluations.
  sent: float  # Bytes that a worker has sent.
  seconds: float  # On the network.


NOWHERE = Point(math.nan, 0.0, 0.0)
"""The point of a run without a score."""


class Objective(NamedTuple):
  """A rule that gives a run a value, from its points in their order.

  With a target, the value is the cost at which a run reaches it. Without one,
  it is the best score that the run has within the budget.
  """

  higher: bool  # Whether a higher score is a better one.
  cost: Literal['seconds', 'sent']
  budget: float  # Points that cost more do not count.
  target: float | None = None
  words: str = ''  # The meaning of its values.

  @property
  def is_of_bytes(self) -> bool:
    """Whether it is the best score within a budget of bytes."""
    return self.target is None and self.cost == 'sent'

  def rank(self, value: float | None) -> float:
    """Returns a key by which values are sorted, the best first."""
    if value is None:
      return math.inf
    return -value if self.target is None and self.higher else value

  def is_over(self, point: Point) -> bool:
    """Whether nothing after this point matters."""
    return self._reaches(point) or getattr(point, self.cost) > self.budget

  def _reaches(self, point: Point) -> bool:
    if self.target is None:
      return False
    gap = point.score - self.target
    return gap >= 0 if self.higher else gap <= 0

  def decisive(self, points: Sequence[Point], is_done: bool) -> Point | None:
    """Returns the point that decides; `None` if the run has no value.

    A run that ended within its budget, and is not done, has diverged.
    """
    counted = [*itertools.takewhile(lambda p: not self.is_over(p), points)]
    over = next(iter(points[len(counted) :]), None)
    if self.target is not None:
      if over is None or getattr(over, self.cost) > self.budget:
        return None
      return over if self._reaches(over) else None
    if over is None and not is_done:
      return None
    sign = 1 if self.higher else -1
    scored = [point for point in counted if not math.isnan(point.score)]
    return max(scored, key=lambda point: sign * point.score, default=None)

  def value(self, point: Point) -> float:
    """Returns the value of a run with this decisive point."""
    return point.score if self.target is None else getattr(point, self.cost)
