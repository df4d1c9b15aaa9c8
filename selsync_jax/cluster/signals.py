"""Signals to this process, from its first moment on.

SIGINT, SIGTERM and SIGHUP (a closed terminal) ask a process to end. Python
raises an exception for them wherever the main thread is, which breaks what a
library or an import was about to do, and only when a call into a library
returns. Here a thread reacts at once, and the main thread goes on undisturbed.
"""

from collections.abc import Callable
import contextlib
import os
import signal
import threading
from typing import Any, NoReturn

STOPPED = 130  # Exit code if nothing was begun; 128 + SIGINT, as in a shell.
RESUMABLE = 75  # Exit code if the same command continues.
WITHOUT_SIGTERM = (signal.SIGINT, signal.SIGHUP)
NUMBERS = (*WITHOUT_SIGTERM, signal.SIGTERM)
_ending = threading.Lock()
_farewells: list[Callable[[int], None]] = []
_program = ['selsync']  # What lines start with.


class Handler:
  """Reacts to signals in a thread; the latest handler that started does.

  Signals that are ignored (as `nohup` does with SIGHUP) stay ignored.

  Args:
    react: called with the number of each signal.
    numbers: of the signals.
  """

  def __init__(
    self, react: Callable[[int], None], numbers: tuple[int, ...] = NUMBERS
  ):
    self._react, self._numbers = react, numbers

  def start(self) -> 'Handler':
    """From now on. Only the main thread can; in others nothing happens."""
    self._before: dict[int, Any] = {}
    if threading.current_thread() is not threading.main_thread():
      return self
    source, self._sink = os.pipe()
    os.set_blocking(self._sink, False)
    self._thread = threading.Thread(
      target=self._listen, args=(source,), daemon=True
    )
    self._thread.start()
    self._outer = signal.set_wakeup_fd(self._sink, warn_on_full_buffer=False)
    for number in self._numbers:
      if signal.getsignal(number) != signal.SIG_IGN:
        self._before[number] = signal.signal(number, _note)
    return self

  def stop(self) -> None:
    """Lets the handler before this one react again."""
    if self._before:
      for number, handler in self._before.items():
        signal.signal(number, handler)
      signal.set_wakeup_fd(self._outer)
      os.close(self._sink)
      self._thread.join()

  def _listen(self, source: int) -> None:
    while number := os.read(source, 1):
      if number[0] in NUMBERS:
        self._react(number[0])
    os.close(source)

  def __enter__(self) -> 'Handler':
    return self.start()

  def __exit__(self, *exc: Any) -> None:
    self.stop()


def _note(number: int, frame: Any) -> None:
  """Does nothing; by then the thread knows."""


def own(number: int) -> None:
  """Takes a signal back from a library that has taken it."""
  if threading.current_thread() is threading.main_thread():
    signal.signal(number, signal.getsignal(number))


def ignore() -> None:
  """Ignores signals from now on: the work is done, and Python is leaving.

  It would restore what they do by default, while libraries are torn down.
  """
  for number in NUMBERS:
    signal.signal(number, signal.SIG_IGN)


def name(program: str) -> None:
  """Says what the line of `stop` starts with."""
  _program[0] = program


def before_stop(farewell: Callable[[int], None]) -> None:
  """Calls `farewell` with the exit code before `stop` ends this process."""
  _farewells.append(farewell)


def stop(code: int, reason: str) -> NoReturn:
  """Ends this process because of a signal, with one line on stderr."""
  for farewell in _farewells:
    farewell(code)
  end(code, f'{_program[0]}: {reason}')


def end(code: int, line: str) -> NoReturn:
  """Ends this process at once, from any thread, with one line on stderr.

  The main thread may be anywhere, even in a collective that never returns.
  """
  with _ending:  # Threads may have different reasons; the first one is told.
    with contextlib.suppress(OSError):
      if os.isatty(1):
        os.write(1, b'\x1b[?25h')  # A progress bar hides the cursor.
      stderr = os.dup(2)
      hush()
      # One write, since processes of one terminal end at the same moment.
      os.write(stderr, f'{line}\n'.encode())
    os._exit(code)


def hush() -> None:
  """Lets what threads still print go nowhere: no line follows the last one."""
  for descriptor in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
