"""What an island has done so far, as its signs of life tell it."""

import collections
import threading


class Meter:
  """Counts what an island has done since it has joined.

  Attributes:
    step: the last step that it has taken.
  """

  def __init__(self):
    self.step, self._changing = 0, threading.Lock()
    self._counts = collections.Counter(
      averages=0, aborts=0, sent_bytes=0, received_bytes=0
    )

  def add(self, **more: int) -> None:
    """Counts what has happened.

    Args:
      **more: `averages` that were applied, `aborts` of exchanges, which the
        islands repeat as one has ended, and `sent_bytes` and `received_bytes`
        of messages.
    """
    with self._changing:
      self._counts.update(more)

  def read(self) -> dict[str, int]:
    """Returns the counts by name, with the `step`."""
    with self._changing:
      return {'step': self.step, **self._counts}
