"""Start the processes, or the islands, of a run on this machine.

  selsync launch --processes=4 -- python train.py ...
  selsync launch --islands=4 -- python train.py ...

The environment of each process has its place and a shared secret: its index and
the address of the first, or an island's name and the invitation of a
coordinator, `selsync meet`, that runs beside them. Every line of its output
begins with its index or name. A signal to end is passed on as SIGTERM. When one
process fails, the others are stopped, and `launch` exits with its code, or with
128 plus the number of the signal that killed it. With `--minimum`, it does so
when too few islands are left, or one fails before all have joined. If
`launch` itself is killed, Linux asks the processes to end; elsewhere, training
notices it after its next step.
"""

import argparse
import collections
from collections.abc import Callable, Generator, Mapping, Sequence
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO

from selsync_jax.cluster import children, signals
from selsync_jax.cluster.connection import TOKEN
from selsync_jax.commands import flags, meet
from selsync_jax.config import ConfigError, Count, RunError

Environment = dict[str, str]
PATIENCE = 5.0  # Seconds before SIGTERM to the others, and before SIGKILL.


def launch(
  command: Sequence[str],
  places: Mapping[str, Environment],
  spare: Callable[[], int] = lambda: 0,
) -> int:
  """Runs a command as several processes.

  Args:
    command: a program and its arguments.
    places: additions to the environment of each process, by its name.
    spare: a function that returns how many processes may fail by now.

  Returns:
    The exit code of the first process that could not be spared, or 0.
  """
  started: dict[str, subprocess.Popen] = {}
  asked: list[str] = []  # The names of received signals.
  turn = threading.Lock()

  def signal_all(number):
    for child in started.values():
      child.send_signal(number)  # Does nothing if it has ended.

  def react(number):
    with turn:
      asked.append(signal.Signals(number).name)
      # On SIGINT, a Python that is still starting prints a traceback.
      signal_all(signal.SIGTERM)

  with signals.Handler(react):
    for name, place in places.items():
      with turn:
        if not asked:
          started[name] = _start(command, place)
    printers = [
      threading.Thread(target=_print_lines, args=args, daemon=True)
      for name, child in started.items()
      for args in (
        (name, child.stdout, sys.stdout),
        (name, child.stderr, sys.stderr),
      )
    ]
    for printer in printers:
      printer.start()
    code = _wait(started, spare, signal_all, asked)
    # Orphans of the processes may hold their output open forever.
    deadline = time.monotonic() + PATIENCE
    for printer in printers:
      printer.join(max(0, deadline - time.monotonic()))
  if asked and (not started or code == 128 + signal.SIGTERM):
    print(f'launch: stopped by {asked[0]}', file=sys.stderr)
    return signals.STOPPED  # No process has reported an error.
  return code


def process_places(processes: int) -> dict[str, Environment]:
  """Returns the places of processes that share a JAX runtime."""
  with socket.create_server(('localhost', 0)) as server:
    port = server.getsockname()[1]
  token = os.environ.get(TOKEN) or secrets.token_hex(16)
  return {
    f'process {index}': {
      'JAX_COORDINATOR_ADDRESS': f'localhost:{port}',
      'JAX_NUM_PROCESSES': str(processes),
      'JAX_PROCESS_ID': str(index),
      TOKEN: token,
    }
    for index in range(processes)
  }


def island_places(islands: int, invitation: str) -> dict[str, Environment]:
  """Returns the places of islands that have one coordinator."""
  digits = len(str(islands - 1))  # Names sort as text.
  names = [f'island{index:0{digits}}' for index in range(islands)]
  return {
    name: {'SELSYNC_ISLAND': name, 'SELSYNC_INVITATION': invitation}
    for name in names
  }


@contextlib.contextmanager
def _meeting_point(
  islands: int, flags: Sequence[str]
) -> Generator[tuple[str, threading.Event]]:
  """Runs a coordinator; yields its invitation, and whether all have joined."""
  local = '--host=127.0.0.1', '--port=0'
  point = children.start(
    [sys.executable, '-m', 'selsync_jax', 'meet', *local, *flags],
    os.environ,
    stdout=subprocess.PIPE,
    text=True,
    preexec_fn=children.end_with_parent,
  )
  assert point.stdout
  said, met = iter(point.stdout), threading.Event()

  def listen():
    every, some = f': {islands} of {islands}\n', ' and the others begin: '
    if any(s.endswith(every) or some in s for s in said):
      met.set()
    collections.deque(said, 0)  # An unread pipe would fill up.

  listener = threading.Thread(target=listen, daemon=True)
  try:
    if not (invitation := next(said, '').strip()):
      raise RunError('the coordinator has not started')
    listener.start()
    yield invitation, met
  finally:
    point.kill()
    point.wait()


def _start(command: Sequence[str], place: Environment) -> subprocess.Popen:
  return children.start(
    command,
    {**os.environ, **place, 'PYTHONUNBUFFERED': '1'},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    errors='replace',
    preexec_fn=children.end_with_parent,  # The command may be any program.
  )


def _print_lines(name: str, stream: IO[str], to: IO[str]) -> None:
  label = name.removeprefix('process ')
  for line in stream:
    print(f'[{label}] {line}', end='', file=to, flush=True)


def _wait(
  started: dict[str, subprocess.Popen],
  spare: Callable[[], int],
  signal_all: Callable[[int], None],
  asked: Sequence[str],
) -> int:
  """Waits for all processes; stops the others when too many have failed.

  Returns the exit code of the first process that could not be spared, or 0.
  After a signal in `asked`, no process is reported as killed.
  """
  processes, failed = list(started.values()), []
  going, spared = True, 0
  while going and len(failed) <= spared:
    time.sleep(0.05)
    going = _running(processes)  # Read first: the last may fail.
    for name, process in started.items():
      if process.poll() and name not in failed:
        failed.append(name)
        if not asked:
          _say_if_killed(name, process.returncode)
    spared = spare()
  if len(failed) <= spared:
    return 0
  # Processes that were asked may still save; do not disturb them.
  for stop in () if asked else (signal.SIGTERM, signal.SIGKILL):
    deadline = time.monotonic() + PATIENCE
    while _running(processes) and time.monotonic() < deadline:
      time.sleep(0.05)
    signal_all(stop)
  for process in processes:
    process.wait()
  code = started[failed[spared]].returncode
  return code if code > 0 else 128 - code


def _say_if_killed(name: str, code: int) -> None:
  if code < 0:
    line = f'{name} was killed by {signal.Signals(-code).name}'
    if code == -signal.SIGKILL:
      line += '; the kernel does so when memory runs out'
    print(f'launch: {line}', file=sys.stderr)


def _running(processes: list[subprocess.Popen]) -> bool:
  return any([process.poll() is None for process in processes])


def main(arguments: Sequence[str]) -> None:
  """Starts the processes, and exits with the code of `launch`."""
  line = flags.CommandLine('launch', positional='-- COMMAND ...')
  line.flag('processes', 'Number of processes.', flags.of(Count))
  about = 'Number of islands, workers without a common JAX runtime.'
  meet.add_flags(line, about)
  line.add_argument('command', nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
  options = line.parse(arguments)
  command = options.command[options.command[:1] == ['--'] :]
  if (options.processes is None) == (options.islands is None):
    raise ConfigError('either --processes=NUMBER or --islands=NUMBER is needed')
  if options.log and options.processes:
    raise ConfigError(f'--log={options.log}: only valid with --islands')
  minimum = meet.least(options)
  if not command:
    raise ConfigError('the command after -- is missing')
  if not shutil.which(command[0]):
    raise ConfigError(f'{command[0]}: not found, or not executable')
  if options.processes:
    sys.exit(launch(command, process_places(options.processes)))
  islands = options.islands
  with _meeting_point(islands, meet.given(options)) as (invitation, met):
    # Not as an argument, which other users of this host could read.
    ask = f'SELSYNC_INVITATION={invitation} selsync status'
    print(f'launch: {ask}', file=sys.stderr, flush=True)
    places = island_places(islands, invitation)
    spare = islands - minimum
    code = launch(command, places, lambda: spare if met.is_set() else 0)
  sys.exit(code)
