"""Start the processes of a run on this machine.

  selsync launch --processes=4 -- python train.py ...

The environment of each process has its place and a shared secret. Every line of
its output begins with its index. Signals are passed on. When one process fails,
the others are stopped, and `launch` exits with its code, or with 128 plus the
number of the signal that killed it. If `launch` itself is killed, Linux asks
the processes to end; elsewhere, training notices it after its next step.
"""

import argparse
from collections.abc import Callable, Sequence
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

from selsync_jax.cluster import children
from selsync_jax.cluster import signals
from selsync_jax.cluster.link import TOKEN
from selsync_jax.commands import flags
from selsync_jax.config import ConfigError

PATIENCE = 5.0  # Seconds before SIGTERM to the others, and before SIGKILL.


def launch(command: Sequence[str], processes: int) -> int:
  """Runs a command as several processes.

  Returns the exit code of the first process that failed; 0 if none did.
  """
  with socket.create_server(('localhost', 0)) as server:
    port = server.getsockname()[1]
  token = os.environ.get(TOKEN) or secrets.token_hex(16)
  started: list[subprocess.Popen] = []

  def signal_all(number):
    for child in started:
      child.send_signal(number)  # Does nothing if it has ended.

  with signals.Handler(signal_all):
    for index in range(processes):
      started.append(_start(command, index, processes, port, token))
    printers = [
      threading.Thread(target=_print_lines, args=args, daemon=True)
      for index, child in enumerate(started)
      for args in (
        (index, child.stdout, sys.stdout),
        (index, child.stderr, sys.stderr),
      )
    ]
    for printer in printers:
      printer.start()
    code = _wait(started, signal_all)
    # What the processes have left behind may hold their output open forever.
    deadline = time.monotonic() + PATIENCE
    for printer in printers:
      printer.join(max(0, deadline - time.monotonic()))
  return code


def _start(
  command: Sequence[str], index: int, processes: int, port: int, token: str
) -> subprocess.Popen:
  place = {
    'JAX_COORDINATOR_ADDRESS': f'localhost:{port}',
    'JAX_NUM_PROCESSES': str(processes),
    'JAX_PROCESS_ID': str(index),
    TOKEN: token,
    'PYTHONUNBUFFERED': '1',
  }
  return children.start(
    command,
    os.environ | place,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    errors='replace',
    preexec_fn=children.end_with_parent,  # The command may be any program.
  )


def _print_lines(index: int, stream: IO[str], to: IO[str]) -> None:
  for line in stream:
    print(f'[{index}] {line}', end='', file=to, flush=True)


def _wait(
  started: list[subprocess.Popen], signal_all: Callable[[int], None]
) -> int:
  """Waits for all processes; when one has failed, stops the others."""
  while _running(started) and not any(child.returncode for child in started):
    time.sleep(0.05)
  codes = [child.returncode for child in started]
  if not any(codes):
    return 0
  index, code = next((i, code) for i, code in enumerate(codes) if code)
  if code < 0:
    line = f'process {index} was killed by {signal.Signals(-code).name}'
    if code == -signal.SIGKILL:
      line += '; the kernel does so when memory runs out'
    print(f'launch: {line}', file=sys.stderr)
    code = 128 - code
  for stop in (signal.SIGTERM, signal.SIGKILL):
    deadline = time.monotonic() + PATIENCE
    while _running(started) and time.monotonic() < deadline:
      time.sleep(0.05)
    signal_all(stop)
  for child in started:
    child.wait()
  return code


def _running(started: list[subprocess.Popen]) -> bool:
  return any([child.poll() is None for child in started])


def main(arguments: Sequence[str]) -> None:
  """Starts the processes, and exits with the code of `launch`."""
  line = flags.CommandLine('launch', positional='-- COMMAND ...')
  line.flag('processes', 'Number of processes.', flags.whole(1))
  line.add_argument('command', nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
  options = line.parse(arguments)
  command = options.command[options.command[:1] == ['--'] :]
  if options.processes is None:
    raise ConfigError('--processes=NUMBER is missing')
  if not command:
    raise ConfigError('the command after -- is missing')
  if not shutil.which(command[0]):
    raise ConfigError(f'{command[0]}: is no program that can be run')
  sys.exit(launch(command, options.processes))
