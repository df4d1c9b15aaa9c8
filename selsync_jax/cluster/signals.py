"""Reactions to signals, from the start of this process.

SIGINT, SIGTERM and SIGHUP (a closed terminal) ask a process to end. For SIGINT,
Python raises an exception in the main thread, but only when a call into a
library returns, and anywhere, for example in an import. Here a thread reacts at
once, and the main thread continues undisturbed.
"""

from collections.abc import Callable
import contextlib
import os
import signal
import threading
from typing import Any, NoReturn

# The exit code if nothing was started: 128 + SIGINT, like a shell's.
STOPPED = 130
RESUMABLE = 75  # The exit code if the same command continues the work.
NUMBERS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_ending = threading.Lock()
_farewells: list[Callable[[int], None]] = []
_program = ['selsync']  # The word before the reason in the line of `stop`.
_without = ['']  # Text of `resumes` about a flag.


class Handler:
  """A thread that calls `react` with the number of each signal.

  It reacts until it stops or another handler starts. Signals that are ignored
  (`nohup` ignores SIGHUP) stay ignored.
  """

  def __init__(self, react: Callable[[int], None]):
    self._react = react

  def start(self) -> 'Handler':
    """Starts to react; does nothing outside the main thread."""
    self._before: dict[int, Any] = {}
    if threading.current_thread() is not threading.main_thread():
      return self
    source, self._sink = os.pipe()
    os.set_blocking(self._sink, False)
    args = (source,)
    self._thread = threading.Thread(target=self._listen, args=args, daemon=True)
    self._thread.start()
    self._outer = signal.set_wakeup_fd(self._sink, warn_on_full_buffer=False)
    for number in NUMBERS:
      if signal.getsignal(number) != signal.SIG_IGN:
        self._before[number] = signal.signal(number, _note)
    return self

  def stop(self) -> None:
    """Lets the previous handler react again."""
    for number, handler in self._before.items():
      signal.signal(number, handler)
    if self._before:
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
  """Does nothing: Python has already notified the thread."""


def ignore() -> None:
  """Ignores signals: the work is done, and Python is exiting.

  Otherwise Python would restore the default, which is to kill the process,
  while libraries are torn down.
  """
  for number in NUMBERS:
    signal.signal(number, signal.SIG_IGN)


def name(program: str) -> None:
  """Sets the word with which the line of `stop` starts."""
  _program[0] = program


def resume_without(flag: str) -> None:
  """Makes `resumes` name a flag that must not be given again."""
  _without[0] = f' without {flag}'


def resumes() -> str:
  """Returns how to resume the run, for the line that ends this process."""
  return f'the same command{_without[0]} resumes the run'


def before_stop(farewell: Callable[[int], None]) -> None:
  """Makes `stop` call `farewell(code)` before it ends this process."""
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
  with _ending:  # If several threads end the process, only one prints.
    with contextlib.suppress(OSError):
      if os.isatty(1):
        os.write(1, b'\x1b[?25h')  # A progress bar hides the cursor.
      stderr = os.dup(2)
      discard_output()
      # Names of files need not be UTF-8. One write, since processes may share
      # a terminal and end together.
      os.write(stderr, f'{line}\n'.encode(errors='backslashreplace'))
    os._exit(code)


def discard_output() -> None:
  """Discards later output of threads, so that no line follows the last."""
  for descriptor in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
