"""Runs a command on N emulated hosts, each with a network of a given speed.

  python -m benchmarks.network.cluster --hosts=4 --bandwidth=200mbit -- COMMAND

COMMAND runs on each of the hosts of tests/support/emulated.py with
`JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, and `JAX_PROCESS_ID` set.
"""

import argparse
from collections.abc import Callable, Sequence
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from typing import Any

from tests.support.emulated import Hosts, inside, missing

PORT = 7070
Table = dict[str, dict[str, float]]


def run(
  hosts: int,
  bandwidth: str | None,
  command: Sequence[str],
  timeout: float | None = None,
  *,
  masked: bool = False,
) -> list[str]:
  """Runs a command on every host of an emulated cluster.

  Args:
    hosts: number of hosts.
    bandwidth: limit of each host's interface, in tc(8)'s notation, for example
      `200mbit`; `None` for no limit.
    command: the command to run on each host.
    timeout: in seconds.
    masked: whether all hosts except the first can only dial out.

  Returns:
    The standard output of each host.

  Raises:
    RuntimeError: if the command failed on a host, with its output.
  """
  with tempfile.TemporaryDirectory() as folder:
    flags = [f'--hosts={hosts}', f'--bandwidth={bandwidth or ""}']
    flags += ['--masked'] * masked
    done = inside(
      *('benchmarks.network.cluster', f'--inside={folder}', *flags),
      *('--', *command),
      capture_output=True,
      text=True,
      timeout=timeout,
    )
    if done.returncode:
      raise RuntimeError(f'{done.stdout}{done.stderr}')
    outs = [pathlib.Path(folder) / f'host{i}.out' for i in range(hosts)]
    return [out.read_text() for out in outs]


def figures(
  measure: Callable[[argparse.Namespace], Any],
  options: argparse.Namespace,
  **changed: Any,
) -> list[Any]:
  """Runs a function on every host of an emulated cluster.

  If hosts cannot be emulated, ends the command with the reason.

  Args:
    measure: a function of a module of benchmarks/network/. Its argument has the
      options and `folder`, the name of a folder that all hosts share.
    options: numbers, texts and lists; for `hosts`, `bandwidth` and `masked` see
      `run`.
    **changed: options to override.

  Returns:
    The function's result on each host.

  Raises:
    RuntimeError: if the function failed on a host, with that host's output.
  """
  masked = {**vars(options), **changed}.get('masked', False)
  if reason := missing(masked=masked):
    sys.exit(f'{pathlib.Path(sys.argv[0]).name}: {reason}')
  module = sys.modules[measure.__module__]
  name = f'{module.__spec__.name}:{measure.__name__}'  # Not `__main__`.
  with tempfile.TemporaryDirectory() as folder:
    given = {**vars(options), **changed, 'folder': folder}
    command = [sys.executable, '-m', 'benchmarks.network.host', name]
    arguments = [*command, json.dumps(given)]
    outputs = run(
      given['hosts'], given['bandwidth'], arguments, 900, masked=masked
    )
  return [json.loads(output.splitlines()[-1]) for output in outputs]


def slowest(each: Sequence[dict[str, float]]) -> dict[str, float]:
  """The longest times over all hosts, by measurement."""
  return {name: max(host[name] for host in each) for name in each[0]}


def means(each: Sequence[Table]) -> Table:
  """The means over hosts of their rows of figures."""
  return {
    name: {f: statistics.mean(host[name][f] for host in each) for f in row}
    for name, row in each[0].items()
  }


def _start(
  hosts: Hosts, i: int, folder: pathlib.Path, command: Sequence[str]
) -> subprocess.Popen:
  """Starts the command on a host as a process of a cluster."""
  place = {
    'JAX_COORDINATOR_ADDRESS': f'host0:{PORT}',
    'JAX_NUM_PROCESSES': str(hosts.number),
    'JAX_PROCESS_ID': str(i),
  }
  with (folder / f'host{i}.out').open('w') as out:
    return hosts.start(
      i,
      command,
      env=os.environ | place,
      stdout=out,
      stderr=subprocess.PIPE,
      text=True,
    )


def _inside(options: argparse.Namespace) -> int:
  """Builds the cluster and runs the command; returns the exit code."""
  hosts, folder = options.hosts, options.inside
  built = Hosts(hosts, options.bandwidth, folder, masked=options.masked)
  children = [_start(built, i, folder, options.command) for i in range(hosts)]
  said: dict[int, str] = {}

  def listen(i, child):
    said[i] = child.communicate()[1]
    if child.returncode:
      for other in children:
        if other.poll() is None:
          other.send_signal(signal.SIGTERM)

  threads = [
    threading.Thread(target=listen, args=pair) for pair in enumerate(children)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  for i, child in enumerate(children):
    if child.returncode:
      print(f'host{i}: exit code {child.returncode}', said[i], file=sys.stderr)
  return max(abs(child.returncode) for child in children)


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--hosts', type=int, default=4)
  parser.add_argument(
    '--bandwidth', default='200mbit', help="in tc(8)'s notation"
  )
  about = 'all hosts except the first are behind routers that masquerade'
  parser.add_argument('--masked', action='store_true', help=about)
  parser.add_argument('--inside', type=pathlib.Path, help=argparse.SUPPRESS)
  parser.add_argument('command', nargs='+', help='the command, after --')
  options = parser.parse_args()
  if options.inside:
    sys.exit(_inside(options))
  masked = options.masked
  if reason := missing(masked=masked):
    sys.exit(f'cluster.py: {reason}')
  try:
    outputs = run(
      options.hosts, options.bandwidth, options.command, masked=masked
    )
  except RuntimeError as error:
    sys.exit(f'cluster.py: {error}')
  for i, output in enumerate(outputs):
    for line in output.splitlines():
      print(f'[host{i}] {line}')


if __name__ == '__main__':
  main()
