"""Islands that keep their own pace: the slower ones rest in some steps.

If all islands take every step, each round lasts as long as the slowest needs.
At a free pace the fastest takes every step, and one that needs twice as long
takes every second: it rests in the others, which count as steps but change
nothing. So all need equally long from one average to the next. After each, they
tell each other how long their steps take.

What is decided is a whole number and the same on all islands, so that all know
who rests.
"""

from collections import deque
from collections.abc import Mapping, Sequence
import statistics
from typing import Any

WHOLE = 1000
"""The share of the steps that an island takes if it takes every one."""

KEPT = 5
"""The times of which a median is taken."""


class Pace:
  """Who rests in which step, equal on all islands.

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
    """Goes on with what was `kept`; else nobody rests until there is a plan."""
    kept = kept or {}
    self.shares = [*kept.get('shares', (WHOLE for _ in self._slots))]
    self._credits = [*kept.get('credits', (0 for _ in self._slots))]

  def to_json(self) -> dict[str, Any]:
    """Returns what `begin` needs to go on."""
    return {'shares': [*self.shares], 'credits': [*self._credits]}

  def next(self, there: Sequence[int]) -> set[int]:
    """Returns the slots of those who are there and rest in the next step.

    The fastest of them rests in none, whoever has decided on the shares.
    """
    most = max(self.shares[slot] for slot in there)
    for slot in there:
      self._credits[slot] += self.shares[slot] * WHOLE // most
    rest = {slot for slot in there if self._credits[slot] < WHOLE}
    for slot in there:
      self._credits[slot] %= WHOLE
    return rest

  def plan(self, seconds: Mapping[int, float]) -> None:
    """Decides what share of the steps each slot takes from now on.

    Args:
      seconds: how long each island that is there needs for a step, by slot; 0
        if it has not measured one, and then nobody rests.
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
  """Measures how long something takes that this island does again and again."""

  def __init__(self) -> None:
    self._seconds: deque[float] = deque(maxlen=KEPT)
    self._is_warm = False

  def add(self, seconds: float) -> None:
    """Adds a time in seconds; the first does not count, as it compiles."""
    if self._is_warm:
      self._seconds.append(seconds)
    self._is_warm = True

  @property
  def median(self) -> float:
    """The median of the last times; 0 if there is none."""
    return statistics.median(self._seconds) if self._seconds else 0.0
