"""Agreement on the last step, after which all programs of a run stop.

Every program has an `Agreement`. One process also has a `Tally`, and all
programs exchange messages with it: process 0 of a JAX world, or the coordinator
of islands.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
import threading
from typing import Any

Message = Mapping[str, Any]
"""Either `{'stop': True}`, `{'reached': step}` or `{'last': step}`."""


class Agreement:
  """A program's part in the agreement on the last step.

  While programs agree, none continues beyond its current step. So each of them
  will pass the step after the last that any program has reached; all stop
  there. A program that is alone stops after its next step.

  Args:
    tell: sends a message to the `Tally`; `None` if this program is alone.

  Attributes:
    is_asked: whether this program was asked to stop.
    reached: last step that this program had taken when it was told to wait.
    last: step after which all stop, once it is known.
  """

  def __init__(self, tell: Callable[[Message], None] | None = None):
    self._tell = tell or (lambda _: self.hear({'last': -1}))
    self._changed, self._step = threading.Condition(), -1
    self._error: Exception | None = None
    self.is_asked = False
    self.reached: int | None = None
    self.last: int | None = None

  def ask(self) -> None:
    """Asks all programs to stop, or to continue without this one."""
    self.is_asked = True
    self._tell({'stop': True})

  def hear(self, message: Message) -> None:
    """Receives a message of the `Tally`; others are ignored."""
    if 'stop' in message:
      with self._changed:
        if self.reached is None:
          self.reached = self._step
      self._tell({'reached': self.reached})
    elif 'last' in message:
      with self._changed:
        self.last = message['last']
        self._changed.notify_all()

  def fail(self, error: Exception) -> None:
    """Makes `stops_after` raise an error, because nothing more will arrive."""
    with self._changed:
      self._error = error
      self._changed.notify_all()

  def stops_after(self, step: int) -> bool:
    """Returns whether to stop after this step; equal in all programs.

    Call it after every step. It waits while the programs agree.
    """
    with self._changed:
      self._changed.wait_for(
        lambda: self.reached is None or self.last is not None or self._error
      )
      if self._error:
        raise self._error
      self._step = step
      return self.last is not None and step >= self.last


class Tally:
  """The steps that programs have reached when one is asked to stop.

  Args:
    programs: names or indices of all programs.
    tell: sends a message to every `Agreement`.
  """

  def __init__(
    self, programs: Iterable[Hashable], tell: Callable[[Message], None]
  ):
    self._missing, self._most = set(programs), -1
    self._tell, self._is_asked = tell, False
    self._changing = threading.Lock()

  def hear(self, program: Hashable, message: Message) -> None:
    """Receives a message of an `Agreement`; others are ignored."""
    if 'stop' in message:
      self.ask()
    elif 'reached' in message:
      self.collect(program, message['reached'])

  def ask(self) -> None:
    """Makes all programs wait, unless they do already."""
    with self._changing:
      before, self._is_asked = self._is_asked, True
    if not before:
      self._tell({'stop': True})

  def collect(self, program: Hashable, step: int = -1) -> None:
    """Sends the last step, when all programs have reported their step.

    A program that has ended counts as having reached none.
    """
    with self._changing:
      self._missing.discard(program)
      self._most = max(self._most, step)
      missing, last = bool(self._missing), self._most + 1
    if not missing:
      self._tell({'last': last})
