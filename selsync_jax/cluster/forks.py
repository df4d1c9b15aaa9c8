"""Processes that start at once, since one has imported what they need.

To import JAX, TensorFlow and the rest takes longer than a short run trains. A
`Forks` is a process that has done it, and forks for each command: the fork is a
process as a shell would start one, with devices of its own. The process that
forks never starts JAX, whose threads no fork would have.

The fork server of `multiprocessing` cannot take its place. It ends at SIGTERM
while its forks save, it outlives a parent that is killed, its forks skip what
`atexit` holds, and what it imports prints to the terminal, not to a log.
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

FLAG = '--forks'  # Of a process that serves them; no user gives it.


class Forks:
  """A process that runs one command at a time, each in a fork of it."""

  def __init__(
    self, modules: Iterable[str], env: Mapping[str, str], log: pathlib.Path
  ):
    """Starts the process, which first imports the modules.

    It ends with the thread that calls this, or by `close`. What it prints to
    stderr goes to the end of a file.
    """
    self._log = log
    self._pid: int | None = None  # Of the command.
    with log.open('ab') as file:
      self._process = process = children.start(
        [sys.executable, '-m', 'selsync_jax', FLAG, *modules],
        env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=file,
        bufsize=0,  # So that `select` knows of all that was not read.
      )
    assert process.stdin  # They are pipes.
    assert process.stdout
    self._requests, self._answers = process.stdin, process.stdout

  def start(self, arguments: Sequence[str], log: pathlib.Path) -> None:
    """Starts a command, which writes to the end of a file."""
    line = json.dumps([str(log), *arguments])
    with contextlib.suppress(BrokenPipeError):  # The answer says it.
      self._requests.write(f'{line}\n'.encode())
    self._pid = self._read()

  def wait(self, seconds: float) -> int | None:
    """Returns the exit status of the command, None if it still runs."""
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
    """Ends the process, and with SIGTERM the command that it runs."""
    self.signal(signal.SIGTERM)
    self._process.communicate()

  def _read(self) -> int:
    if line := self._answers.readline():
      return int(line)
    self._pid = None  # Its own end has sent the command a signal.
    raise RunError(f'{self._log}: the process that starts the runs has ended')


def serve(modules: Iterable[str]) -> list[str]:
  """Imports modules, and forks for each line of the standard input.

  Returns in the fork, with the arguments of its command. A process calls this
  before it has threads.
  """
  # What asks a run to end is for its command alone: with these processes, the
  # command would lose what it has not saved. Its fork lets the signals in.
  signal.pthread_sigmask(signal.SIG_BLOCK, signals.NUMBERS)
  children.end_with_parent(signal.SIGKILL)
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)  # What the modules print is no answer.
  for name in modules:
    with contextlib.suppress(Exception):  # The command says it in one line.
      importlib.import_module(name)
  # Libraries have started threads, and Linux signals the end of each thread of
  # a parent. A second signal would interrupt a command that saves, so what
  # forks for commands is a fork, with one thread.
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
    warnings.simplefilter('ignore')  # Of threads; NumPy's expect a fork.
    return os.fork()


def _become(log: str, arguments: Sequence[str]) -> None:
  """Gives a fork the input, output and arguments of a process of its own."""
  children.end_with_parent()
  signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.NUMBERS)
  source = os.open(os.devnull, os.O_RDONLY)
  sink = os.open(log, os.O_WRONLY | os.O_APPEND)
  for descriptor, file in enumerate((source, sink, sink)):
    os.dup2(file, descriptor)
  if numpy := sys.modules.get('numpy'):  # Its old generator has been seeded.
    numpy.random.seed()
  sys.argv[1:] = arguments
  sys.orig_argv[:] = [sys.executable, '-m', 'selsync_jax', *arguments]
