"""What happens at a meeting point: who comes, who goes, and who is there."""

from collections.abc import Callable, Sequence
import itertools
import time
from typing import NamedTuple


class Event(NamedTuple):
  """What has happened to an island.

  Attributes:
    time: seconds since 1970.
    kind: `joined`, `returned`, `admitted`, `left`, or `ended`.
    island: its name.
    words: what is said of it, after its name.
    generation: that of the islands that go on; 0 before all have met.
    present: the names of the islands in it; none if all end.
  """

  time: float
  kind: str
  island: str
  words: str
  generation: int = 0
  present: Sequence[str] = ()


class Journal:
  """The events at a meeting point, in their order.

  Args:
    say: a function that takes a line about each.

  Attributes:
    events: all of them so far.
  """

  def __init__(self, say: Callable[[str], None]):
    self.events: list[Event] = []
    self._say = say

  def add(
    self,
    kind: str,
    island: str,
    words: str,
    generation: int = 0,
    present: Sequence[str] = (),
  ) -> None:
    """Adds what happens now; see `Event`."""
    event = Event(time.time(), kind, island, words, generation, present)
    self.events.append(event)
    self._say(f'{island} {words}')


def participation(events: Sequence[Event], until: float) -> float | None:
  """Returns the share of the islands that took part, on average over time.

  Times in which none did do not count; `None` if there are no others.

  Args:
    events: at least one, in their order.
    until: the end, in seconds since 1970.
  """
  times = [*(event.time for event in events), until]
  lasted = [end - start for start, end in itertools.pairwise(times)]
  there = [len(event.present) for event in events]
  spent = sum(seconds for seconds, n in zip(lasted, there, strict=True) if n)
  if not spent:
    return None
  taken = sum(seconds * n for seconds, n in zip(lasted, there, strict=True))
  return taken / spent / max(there)
