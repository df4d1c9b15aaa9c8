"""Signals during training: the run finishes the step, saves, and exits.

A second signal ends the process immediately. Signals within a second of the
first belong to the same request: a terminal that closes, a launcher, and a
supervisor of all processes may each signal the same process.
"""

import contextlib
import signal
import time

from selsync_jax.cluster import children, signals
from selsync_jax.cluster.agreement import Agreement

_SAME = 1.0  # Seconds in which signals are one request.


class Preemption(contextlib.ExitStack):
  """A context in which a signal is a request that `requested` reports.

  Before the first step and after closing, there is nothing to save, and the
  previous handler receives signals. With several programs, a signal to one is a
  request to all, and they agree on the step after which all of them stop. An
  island may instead leave alone.

  The end of the `launch` or `compare` that started this process is also a
  request.

  Args:
    agreement: agreement of several programs on the last step.
  """

  def __init__(self, agreement: Agreement | None = None):
    super().__init__()
    self._asked = self._handles = False
    self._since = 0.0  # Time of the request.
    self._agreement = agreement or Agreement()
    self._handler = signals.Handler(self._ask)

  def _ask(self, number: int) -> None:
    del number
    if self._asked:
      if time.monotonic() - self._since < _SAME:
        return
      reason = f'ended by a second signal; {signals.resumes()}'
      signals.stop(signals.STOPPED, reason)
    self._asked, self._since = True, time.monotonic()
    self._agreement.ask()

  def requested(self, step: int) -> bool:
    """Returns whether to stop after this step; equal in all programs.

    Call it after every step.
    """
    if not self._handles:
      self.enter_context(self._handler)
      self._handles = True
    if not self._asked and children.is_orphaned():
      self._ask(signal.SIGTERM)
    return self._agreement.stops_after(step)
