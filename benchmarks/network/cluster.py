"""Runs a command on N emulated hosts, each with a network of a given speed.

  python -m benchmarks.network.cluster --hosts=4 --bandwidth=200mbit -- COMMAND

Each host is a network namespace on one bridge, with its own name, address, and
shaped interface (a token bucket in each direction). COMMAND runs on each host
with `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, and `JAX_PROCESS_ID` set.
It uses real sockets and real TCP; only the wire is slow.

All namespaces belong to this process, so nothing is left when it ends, however
it ends. This needs no root where the kernel lets users create namespaces.
"""

import argparse
from collections.abc import Sequence
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from typing import Any

SUBNET = '10.77.0'
PORT = 7070
Table = dict[str, dict[str, float]]


def missing() -> str | None:
  """Returns what this machine lacks to emulate a cluster, or `None`."""
  if sys.platform != 'linux':
    return 'an emulated cluster needs Linux'
  lacking = [
    tool
    for tool in ('ip', 'tc', 'setpriv', 'unshare', 'nsenter', 'mount')
    if shutil.which(tool, path=_path()) is None
  ]
  if lacking:
    return f'not installed: {", ".join(lacking)} (iproute2, util-linux)'
  probe = subprocess.run(
    [*_unshare(), 'sh', '-c', _PROBE],
    env=os.environ | {'PATH': _path()},
    capture_output=True,
    text=True,
    check=False,
  )
  return probe.stderr.strip() or None if probe.returncode else None


_PROBE = (
  'set -e; mount -t tmpfs none /run; '
  'ip link add name v0 type veth peer name v1; '
  'tc qdisc add dev v0 root tbf rate 1mbit burst 32kb latency 1ms; '
  'ip link add name br type bridge'
)


def _path() -> str:
  """The search path, with the directories of system tools."""
  return os.environ.get('PATH', '') + ':/usr/sbin:/sbin'


def _unshare() -> list[str]:
  """A command prefix that creates network and mount namespaces.

  A user without root privileges becomes root inside them. The namespaces end
  with this process, even if a signal kills it.
  """
  user = [] if os.geteuid() == 0 else ['--user', '--map-root-user']
  own = ['--net', '--mount', '--pid', '--fork', '--kill-child']
  return ['setpriv', '--pdeathsig=KILL', 'unshare', *user, *own]


def run(
  hosts: int,
  bandwidth: str | None,
  command: Sequence[str],
  timeout: float | None = None,
) -> list[str]:
  """Runs a command on every host of an emulated cluster.

  Args:
    hosts: number of hosts.
    bandwidth: of each host's interface, in tc(8)'s notation, for example
      `200mbit`; `None` does not limit it.
    command: to run on each host.
    timeout: in seconds.

  Returns:
    The standard output of each host.

  Raises:
    RuntimeError: if the command failed on a host, with its output.
  """
  with tempfile.TemporaryDirectory() as folder:
    inner = [
      sys.executable,
      '-m',
      'benchmarks.network.cluster',
      '--inside',
      folder,
    ]
    flags = [f'--hosts={hosts}', f'--bandwidth={bandwidth or ""}']
    done = subprocess.run(
      [*_unshare(), *inner, *flags, '--', *command],
      env=os.environ | {'PATH': _path()},
      cwd=pathlib.Path(__file__).parents[2],
      capture_output=True,
      text=True,
      timeout=timeout,
      check=False,
    )
    if done.returncode:
      raise RuntimeError(f'{done.stdout}{done.stderr}')
    outs = [pathlib.Path(folder) / f'host{i}.out' for i in range(hosts)]
    return [out.read_text() for out in outs]


def figures(
  hosts: int, bandwidth: str | None, module: str, *arguments: str
) -> list[Any]:
  """Runs a benchmark on every host of an emulated cluster.

  Args:
    hosts: number of hosts.
    bandwidth: see `run`.
    module: a module of benchmarks/network/, which ends with a line of JSON.
    arguments: of its command line.

  Returns:
    What each host printed.

  Raises:
    RuntimeError: if the benchmark failed on a host, with its output.
  """
  command = [sys.executable, '-m', f'benchmarks.network.{module}', *arguments]
  outputs = run(hosts, bandwidth, command, 900)
  return [json.loads(output.splitlines()[-1]) for output in outputs]


def means(each: Sequence[Table]) -> Table:
  """The means over hosts of their rows of figures."""
  return {
    name: {f: statistics.mean(host[name][f] for host in each) for f in row}
    for name, row in each[0].items()
  }


def _sh(line: str) -> None:
  subprocess.run(line, shell=True, check=True)


def _build(hosts: int, bandwidth: str, folder: pathlib.Path) -> None:
  """Creates the bridge, the hosts, and their links, inside the namespaces."""
  _sh('mount -t tmpfs none /run && mkdir /run/netns')
  _sh('ip link add name switch type bridge && ip link set switch up')
  names = [f'{SUBNET}.{i + 1} host{i}' for i in range(hosts)]
  (folder / 'hosts').write_text('\n'.join(['127.0.0.1 localhost', *names, '']))
  shape = f'root tbf rate {bandwidth} burst 64kb latency 100ms'
  for i in range(hosts):
    _sh(f'ip netns add host{i}')
    _sh(f'ip link add name port{i} type veth peer name eth0 netns host{i}')
    _sh(f'ip link set port{i} master switch up')
    inside = f'ip -n host{i}'
    _sh(f'{inside} address add {SUBNET}.{i + 1}/24 dev eth0')
    _sh(f'{inside} link set eth0 up && {inside} link set lo up')
    if bandwidth:  # Out of the host and into it.
      _sh(f'tc -n host{i} qdisc add dev eth0 {shape}')
      _sh(f'tc qdisc add dev port{i} {shape}')


def _start(
  i: int, hosts: int, folder: pathlib.Path, command: Sequence[str]
) -> subprocess.Popen:
  """Starts the command on a host whose own name resolves to its address."""
  place = {
    'JAX_COORDINATOR_ADDRESS': f'host0:{PORT}',
    'JAX_NUM_PROCESSES': str(hosts),
    'JAX_PROCESS_ID': str(i),
  }
  enter = f'mount --bind {folder}/hosts /etc/hosts; hostname host{i}; exec "$@"'
  with (folder / f'host{i}.out').open('w') as out:
    return subprocess.Popen(
      [
        *f'nsenter --net=/run/netns/host{i} unshare --mount --uts'.split(),
        *('sh', '-c', enter, 'sh', *command),
      ],
      env=os.environ | place,
      stdout=out,
      stderr=subprocess.PIPE,
      text=True,
    )


def _inside(
  hosts: int, bandwidth: str, folder: pathlib.Path, command: Sequence[str]
) -> int:
  """Builds the cluster and runs the command; returns the exit code."""
  _build(hosts, bandwidth, folder)
  children = [_start(i, hosts, folder, command) for i in range(hosts)]
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
  """The command line."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--hosts', type=int, default=4)
  parser.add_argument(
    '--bandwidth', default='200mbit', help="in tc(8)'s notation"
  )
  parser.add_argument('--inside', type=pathlib.Path, help=argparse.SUPPRESS)
  parser.add_argument('command', nargs='+', help='after --')
  options = parser.parse_args()
  if options.inside:
    sys.exit(
      _inside(options.hosts, options.bandwidth, options.inside, options.command)
    )
  if reason := missing():
    sys.exit(f'cluster.py: {reason}')
  try:
    outputs = run(options.hosts, options.bandwidth, options.command)
  except RuntimeError as error:
    sys.exit(f'cluster.py: {error}')
  for i, output in enumerate(outputs):
    for line in output.splitlines():
      print(f'[host{i}] {line}')


if __name__ == '__main__':
  main()
