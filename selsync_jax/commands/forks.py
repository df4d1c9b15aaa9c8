"""Processes that start at once, by forking a process with loaded modules.

Importing JAX, TensorFlow and the rest takes longer than a short run trains. A
`Forks` process has imported them, and forks for each command: the fork is like
a process that a shell starts, with its own devices. The forking process never
starts JAX, because a fork would lack JAX's threads.

The fork server of `multiprocessing` cannot replace it. It ends at SIGTERM
while its forks save, it outlives a killed parent, its forks skip `atexit`
handlers, and its imports print to the terminal, not to a log.
"""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import importlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import warnings

from selsync_jax.cluster import children, signals
from selsync_jax.config import RunError

FLAG = '--forks'  # Marks a forking process; users never pass it.


class Forks:
  """A process that runs one command at a time, each in a fork of itself."""

  def __init__(
    self, modules: Iterable[str], env: Mapping[str, str], log: pathlib.Path
  ):
    """Starts the process, which first imports the modules.

    The process ends with the thread that calls this, or by `close`. Its stderr
    is appended to a file.
    """
    self._log = log
    self._pid: int | None = None  # The command's.
    with log.open('ab') as file:
      self._process = process = children.start(
        [sys.executable, '-m', 'selsync_jax', FLAG, *modules],
        env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=file,
        bufsize=0,  # So that `select` sees everything unread.
      )
    assert process.stdin  # All are pipes.
    assert process.stdout
    self._requests, self._answers = process.stdin, process.stdout

  def start(self, arguments: Sequence[str], log: pathlib.Path) -> None:
    """Starts a command, whose output is appended to a file."""
    line = json.dumps([str(log), *arguments])
    with contextlib.suppress(BrokenPipeError):  # The answer reports it.
      self._requests.write(f'{line}\n'.encode())
    self._pid = self._read()

  def wait(self, seconds: float) -> int | None:
    """Returns the exit status of the command; `None` if it still runs."""
    ready, _, _ = select.select([self._answers], [], [], seconds)
    if not ready:
      return None
    status, self._pid = self._read(), None
    return status

  def signal(self, number: int) -> None:
    """Sends a signal to the command, if it still runs."""
    if pid := self._pid:
      with contextlib.suppress(ProcessLookupError):  # It has just ended.
        os.kill(pid, number)

  def close(self) -> None:
    """Ends the process, and ends its running command with SIGTERM."""
    self.signal(signal.SIGTERM)
    self._process.communicate()

  def _read(self) -> int:
    if line := self._answers.readline():
      return int(line)
    self._pid = None  # The end of the process has sent the command a signal.
    raise RunError(f'{self._log}: the process that starts the runs has ended')


def serve(modules: Iterable[str]) -> list[str]:
  """Imports modules, and forks for each line of the standard input.

  Returns in the fork, with the arguments of its command. The caller must not
  have started threads yet.
  """
  # Signals to stop are for the command alone: if these processes ended, the
  # command would lose unsaved work. Its fork accepts the signals.
  signal.pthread_sigmask(signal.SIG_BLOCK, signals.NUMBERS)
  children.end_with_parent(signal.SIGKILL)
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)  # Output of the modules is not an answer.
  for name in modules:
    with contextlib.suppress(Exception):  # The command reports it.
      importlib.import_module(name)
  # Libraries have started threads, and Linux signals the end of each thread of
  # a parent. A second signal would interrupt a command that saves, so the
  # process that forks for commands is itself a fork, with one thread.
  if pid := _fork():
    os.waitpid(pid, 0)
    sys.exit()
  children.end_with_parent(signal.SIGKILL)
  for line in sys.stdin:
    pid = _fork()
    if not pid:
      answers.close()
      log, *arguments = json.loads(line)
      _become(log, arguments)
      return arguments
    print(pid, file=answers)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), file=answers)
  sys.exit()


def _fork() -> int:
  with warnings.catch_warnings():
    # The warning concerns threads; NumPy's are prepared for a fork.
    warnings.simplefilter('ignore')
    return os.fork()


def _become(log: str, arguments: Sequence[str]) -> None:
  """Gives a fork its own input, output and arguments."""
  children.end_with_parent()
  signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.NUMBERS)
  source = os.open(os.devnull, os.O_RDONLY)
  sink = os.open(log, os.O_WRONLY | os.O_APPEND)
  for descriptor, file in enumerate((source, sink, sink)):
    os.dup2(file, descriptor)
  if numpy := sys.modules.get('numpy'):  # Its legacy generator has been seeded.
    numpy.random.seed()
  sys.argv[1:] = arguments
  sys.orig_argv[:] = [sys.executable, '-m', 'selsync_jax', *arguments]
