"""What happens at a meeting point: who comes, who goes, and who is there."""

from collections.abc import Callable, Sequence
import contextlib
import itertools
import json
import pathlib
import time
from typing import NamedTuple


class Event(NamedTuple):
  """What has happened to an island.

  Attributes:
    time: seconds since 1970.
    kind: `joined`, `returned`, `admitted`, `left`, `finished`, or `ended`.
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
    log: a file to which a line of JSON about each is added, if any.

  Attributes:
    events: all of them so far.
  """

  def __init__(
    self, say: Callable[[str], None], log: pathlib.Path | None = None
  ):
    self.events: list[Event] = []
    self._say, self._log = say, log

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
    # A full disk must not end the run, nor a terminal that is gone.
    with contextlib.suppress(OSError, ValueError):
      self._say(f'{island} {words}')
    if self._log:
      with contextlib.suppress(OSError), open(self._log, 'a') as file:
        file.write(f'{json.dumps(event._asdict())}\n')


def read(path: pathlib.Path) -> list[Event]:
  """Reads a log; lines that a crash has cut off are left out."""
  events = []
  for line in path.read_bytes().split(b'\n'):
    with contextlib.suppress(ValueError, TypeError):
      events.append(Event(**json.loads(line)))
  return events


def participation(events: Sequence[Event], until: float) -> float | None:
  """Returns the share of the islands that took part, on average over time.

  Times in which none did do not count; `None` if there are no others.

  Args:
    events: in their order.
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
