"""Signals during training: the run finishes the step, saves, and exits.

A second signal ends the process immediately. Signals within a second of the
first belong to the same request: a terminal that closes, a launcher, and a
supervisor of all processes may each signal the same process.
"""

import contextlib
import signal
import time

from selsync_jax.cluster import children, signals

_SAME = 1.0  # Seconds in which signals are one request.


class Agreement:
  """A program's part in the choice of the last step, after which all stop.

  Here it is alone, and stops after its next step. `link.LinkAgreement` is for
  several programs.

  Attributes:
    is_asked: whether this program was asked to stop.
  """

  def __init__(self):
    self.is_asked = False

  def ask(self) -> None:
    """Asks all programs to stop, or to continue without this one."""
    self.is_asked = True

  def stops_after(self, step: int) -> bool:
    """Returns whether to stop after this step; equal in all programs.

    Call it after every step. It waits while the programs agree.
    """
    del step
    return self.is_asked


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
    self._since: float | None = None  # Time of the request.
    self._handles = False
    self._agreement = agreement or Agreement()
    self._handler = signals.Handler(self._ask)

  def _ask(self, number: int) -> None:
    del number
    if self._since is not None:
      if time.monotonic() - self._since < _SAME:
        return
      reason = f'ended by a second signal; {signals.resumes()}'
      signals.stop(signals.STOPPED, reason)
    self._since = time.monotonic()
    self._agreement.ask()

  def requested(self, step: int) -> bool:
    """Returns whether to stop after this step; equal in all programs.

    Call it after every step.
    """
    if not self._handles:
      self.enter_context(self._handler)
      self._handles = True
    if self._since is None and children.is_orphaned():
      self._ask(signal.SIGTERM)
    return self._agreement.stops_after(step)
