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
from collections.abc import Mapping, Sequence
import statistics
from typing import Any

WHOLE = 1000
"""The share of an island that takes every step."""

KEPT = 5
"""The number of times that a median is taken of."""


class Pace:
  """Which islands rest in which step, equal on all islands.

  Args:
    slots: N, the number of the run's islands.

  Example:
    >>> pace = Pace(2)
    >>> pace.plan({0: 0.1, 1: 0.2})
    >>> [sorted(pace.next([0, 1])) for _ in range(4)]
    [[], [1], [], [1]]
  """

  def __init__(self, slots: int):
    self._slots = range(slots)
    self.begin(None)

  def begin(self, kept: Mapping[str, Any] | None) -> None:
    """Continues from a record, `kept`; else no island rests until a `plan`."""
    kept = kept or {}
    self.shares = [*kept.get('shares', (WHOLE for _ in self._slots))]
    self._credits = [*kept.get('credits', (0 for _ in self._slots))]

  def to_json(self) -> dict[str, Any]:
    """Returns the record that `begin` continues from."""
    return {'shares': [*self.shares], 'credits': [*self._credits]}

  def next(self, there: Sequence[int]) -> set[int]:
    """Returns the slots of `there` that rest in the next step.

    The fastest of them never rests, even if a faster island has left.
    """
    most = max(self.shares[slot] for slot in there)
    for slot in there:
      self._credits[slot] += self.shares[slot] * WHOLE // most
    rest = {slot for slot in there if self._credits[slot] < WHOLE}
    for slot in there:
      self._credits[slot] %= WHOLE
    return rest

  def plan(self, seconds: Mapping[int, float]) -> None:
    """Decides which share of the steps each slot takes from now on.

    Args:
      seconds: the seconds that each present island needs for a step, by slot; 0
        if it has not measured any, and then no island rests.
    """
    shares = zip(seconds, plan([*seconds.values()]), strict=True)
    self.decide(dict(enumerate(self.shares)) | dict(shares))

  def decide(self, shares: Mapping[int, int]) -> None:
    """Gives slots their shares; all of them take the next step."""
    for slot, share in shares.items():
      self.shares[slot], self._credits[slot] = share, WHOLE - share


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
