"""Log of events at a coordinator: islands that join, leave, or end."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import json
import pathlib
import queue
import threading
import time
from typing import NamedTuple


class Event(NamedTuple):
  """An event in the life of an island.

  Attributes:
    time: seconds since 1970.
    kind: `joined`, `returned`, `admitted`, `left`, `finished`, or `ended`.
    island: name of the island.
    words: description of the event, to print after the name.
    generation: index of the generation that continues; 0 before the first.
    present: names of the islands in that generation; empty if all end.
  """

  time: float
  kind: str
  island: str
  words: str
  generation: int = 0
  present: Sequence[str] = ()


class Totals(NamedTuple):
  """Summary of all events so far, of fixed size.

  Attributes:
    last: the last event; its kind is empty before the first event.
    last_of: the last event of each island, by its name.
    counts: number of events by kind.
    seconds: total time in which any islands took part.
    taken: sum over islands of the seconds in which each took part.
    most: the most islands that took part at a time.
  """

  last: Event = Event(0.0, '', '', '')
  last_of: Mapping[str, Event] = {}
  counts: Mapping[str, int] = {}
  seconds: float = 0.0
  taken: float = 0.0
  most: int = 0

  def after(self, event: Event) -> 'Totals':
    """Returns the totals after one more event."""
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

    The time ends at `until`, in seconds since 1970. Times without any islands
    do not count; `None` if there are no other times.
    """
    end = self.after(Event(until, '', '', ''))
    return end.taken / end.seconds / end.most if end.seconds else None


class Journal:
  """Reports the events at a coordinator, in their order.

  `say` takes a line about each event; the file `log` receives a line of JSON.
  """

  def __init__(
    self, say: Callable[[str], None], log: pathlib.Path | None = None
  ):
    self.totals = Totals()
    self._say, self._log = say, log
    # A paused terminal or file system must not block the coordinator.
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
    """Adds an event that happens now; see `Event`."""
    event = Event(time.time(), kind, island, words, generation, present)
    self.totals = self.totals.after(event)
    self._waiting.put(event)

  def remark(self, line: str) -> None:
    """Prints a line that concerns no island and does not belong in the log."""
    self._waiting.put(line)

  def close(self) -> None:
    """Waits briefly until every event has been written."""
    self._waiting.put(None)
    self._writer.join(1.0)

  def _write(self) -> None:
    while event := self._waiting.get():
      is_remark = isinstance(event, str)
      line = event if is_remark else f'{event.island} {event.words}'
      # Neither a full disk nor a closed terminal may end the run.
      with contextlib.suppress(OSError, ValueError):
        self._say(line)
      if self._log and not is_remark:
        with contextlib.suppress(OSError), open(self._log, 'a') as file:
          file.write(f'{json.dumps(event._asdict())}\n')


def read(path: pathlib.Path) -> list[Event]:
  """Reads a log; skips lines that a crash has cut off."""
  events = []
  for line in path.read_bytes().split(b'\n'):
    with contextlib.suppress(ValueError, TypeError):
      events.append(Event(**json.loads(line)))
  return events
