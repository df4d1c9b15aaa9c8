"""Counts of an island's work, reported by its signs of life."""

import collections
import threading


class Meter:
  """Counts the work of an island since it has joined.

  Attributes:
    step: the last step that the island has taken.
  """

  def __init__(self):
    self.step, self._changing = 0, threading.Lock()
    self._counts = collections.Counter(
      averages=0, aborts=0, sent_bytes=0, received_bytes=0
    )

  def add(self, **more: int) -> None:
    """Adds to the counts.

    Args:
      **more: `averages` that were applied, `aborts` of exchanges, which the
        islands repeat after one has ended, and `sent_bytes` and
        `received_bytes` of messages.
    """
    with self._changing:
      self._counts.update(more)

  def read(self) -> dict[str, int]:
    """Returns the counts by name, with the `step`."""
    with self._changing:
      return {'step': self.step, **self._counts}
