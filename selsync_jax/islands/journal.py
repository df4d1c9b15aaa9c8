"""Events at a coordinator: islands that join, leave, and are present."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import json
import pathlib
import queue
import threading
import time
from typing import NamedTuple


class Event(NamedTuple):
  """An event of an island.

  Attributes:
    time: seconds since 1970.
    kind: `joined`, `returned`, `admitted`, `left`, `finished`, or `ended`.
    island: its name.
    words: what is said of it, after its name.
    generation: index of the generation that continues; 0 before all have met.
    present: the names of the islands in it; none if all end.
  """

  time: float
  kind: str
  island: str
  words: str
  generation: int = 0
  present: Sequence[str] = ()


class Totals(NamedTuple):
  """Totals of events, however many there are.

  Attributes:
    last: the last one; of no kind before the first.
    last_of: the last one of each island, by its name.
    counts: number of events by kind.
    seconds: the time in which any islands took part.
    taken: the seconds in which each of them did, added.
    most: the most islands that took part at a time.
  """

  last: Event = Event(0.0, '', '', '')
  last_of: Mapping[str, Event] = {}
  counts: Mapping[str, int] = {}
  seconds: float = 0.0
  taken: float = 0.0
  most: int = 0

  def after(self, event: Event) -> 'Totals':
    """Returns what they amount to with the next one."""
    count = self.counts.get(event.kind, 0) + 1
    lasted, there = event.time - self.last.time, len(self.last.present)
    return Totals(
      event,
      {**self.last_of, event.island: event},
      {**self.counts, event.kind: count},
      self.seconds + (lasted if there else 0.0),
      self.taken + lasted * there,
      max(self.most, len(event.present)),
    )

  def participation(self, until: float) -> float | None:
    """Returns the share of the islands that took part, on average over time.

    Times in which none did do not count; `None` if there are no others.

    Args:
      until: the end, in seconds since 1970.
    """
    end = self.after(Event(until, '', '', ''))
    return end.taken / end.seconds / end.most if end.seconds else None


class Journal:
  """Tells of the events at a coordinator, in their order.

  Args:
    say: a function that takes a line about each.
    log: a file to which a line of JSON about each is added, if any.

  Attributes:
    totals: what they amount to so far.
  """

  def __init__(
    self, say: Callable[[str], None], log: pathlib.Path | None = None
  ):
    self.totals = Totals()
    self._say, self._log = say, log
    self._adding = threading.Lock()
    # A terminal that is paused, or a file system, must not hold anybody up.
    self._waiting: queue.SimpleQueue[Event | str | None] = queue.SimpleQueue()
    self._writer = threading.Thread(target=self._write, daemon=True)
    self._writer.start()

  def add(
    self,
    kind: str,
    island: str,
    words: str,
    generation: int = 0,
    present: Sequence[str] = (),
  ) -> None:
    """Adds what happens now; see `Event`."""
    with self._adding:
      event = Event(time.time(), kind, island, words, generation, present)
      self.totals = self.totals.after(event)
      self._waiting.put(event)

  def remark(self, line: str) -> None:
    """Says a line about no island; the log does not have it."""
    self._waiting.put(line)

  def close(self) -> None:
    """Waits a moment until every event has been written."""
    self._waiting.put(None)
    self._writer.join(1.0)

  def _write(self) -> None:
    while event := self._waiting.get():
      is_remark = isinstance(event, str)
      line = event if is_remark else f'{event.island} {event.words}'
      # A full disk must not end the run, nor a terminal that is gone.
      with contextlib.suppress(OSError, ValueError):
        self._say(line)
      if self._log and not is_remark:
        with contextlib.suppress(OSError), open(self._log, 'a') as file:
          file.write(f'{json.dumps(event._asdict())}\n')


def read(path: pathlib.Path) -> list[Event]:
  """Reads a log; lines that a crash has cut off are left out."""
  events = []
  for line in path.read_bytes().split(b'\n'):
    with contextlib.suppress(ValueError, TypeError):
      events.append(Event(**json.loads(line)))
  return events
