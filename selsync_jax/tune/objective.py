"""The goal of a search: a target at the least cost, or the best score.

Scores are on the validation split, one for each evaluation of a run.
"""

from collections.abc import Sequence
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
  budget: float  # With a target, the cost from which a run is too slow.
  target: float | None = None
  words: str = ''  # The meaning of its values.

  @property
  def direction(self) -> Literal['minimize', 'maximize']:
    """The direction of better values."""
    by_score = self.target is None and self.higher
    return 'maximize' if by_score else 'minimize'

  @property
  def is_of_bytes(self) -> bool:
    """Whether it is the best score within a budget of bytes."""
    return self.target is None and self.cost == 'sent'

  def rank(self, value: float | None) -> float:
    """Returns a key by which values are sorted, the best first."""
    if value is None:
      return math.inf
    return value if self.direction == 'minimize' else -value

  def best(self, points: Sequence[Point]) -> Point | None:
    """Returns the point with the best score; `None` if there is none."""
    sign = 1 if self.higher else -1
    scored = [point for point in points if not math.isnan(point.score)]
    return max(scored, key=lambda point: sign * point.score, default=None)

  def is_over(self, point: Point) -> bool:
    """Whether nothing after this point matters."""
    if self.target is None:
      return self.share(point) > 1
    gap = point.score - self.target
    return gap >= 0 if self.higher else gap <= 0

  def decisive(self, points: Sequence[Point], is_done: bool) -> Point | None:
    """Returns the point that decides; `None` if the run has no value.

    A run that ended within its budget, and is not done, has diverged.
    """
    over = next(filter(self.is_over, points), None)
    if self.target is not None:
      return over
    if over is None and not is_done:
      return None
    return self.best([point for point in points if not self.is_over(point)])

  def value(self, point: Point) -> float:
    """Returns the value of a run with this decisive point."""
    return point.score if self.target is None else getattr(point, self.cost)

  def progress(self, point: Point) -> float:
    """Returns the score; its negative if the best value is the lowest."""
    runs_against = self.target is not None and self.higher
    return -point.score if runs_against else point.score

  def share(self, point: Point) -> float:
    """Returns the share of the budget that has been spent."""
    return getattr(point, self.cost) / self.budget
