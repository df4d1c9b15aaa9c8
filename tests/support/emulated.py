"""Emulated hosts: network namespaces of this machine.

All hosts are on one bridge, each with its own name, address, and shaped
interface (a token bucket in each direction). Sockets and TCP are real; only the
wire is slow.

All namespaces belong to the process that makes them, so nothing remains after
the process ends, even if it is killed. This needs no root where the kernel lets
users create namespaces.

Hosts may be masked: each is then behind a router of its own, which translates
addresses, so that it can only dial out. All of them have one private address.
"""

from collections.abc import Sequence
import functools
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

COMMAND = sys.executable, '-m', 'benchmarks.network.cluster'
SUBNET = '10.77.0'
PRIVATE = '192.168.77'


@functools.cache
def missing(*, masked: bool = False) -> str | None:
  """Returns what this machine lacks to emulate a cluster, or `None`."""
  if sys.platform != 'linux':
    return 'an emulated cluster needs Linux'
  lacking = [
    tool
    for tool in (*_TOOLS, *['nft'] * masked)
    if shutil.which(tool, path=_path()) is None
  ]
  if lacking:
    packages = 'iproute2, util-linux, nftables'
    return f'not installed: {", ".join(lacking)} ({packages})'
  probe = subprocess.run(
    [*_unshare(), 'sh', '-c', _PROBE + _MASK.format('v0') * masked],
    env=os.environ | {'PATH': _path()},
    capture_output=True,
    text=True,
    check=False,
  )
  return probe.stderr.strip() or None if probe.returncode else None


_TOOLS = 'ip', 'tc', 'setpriv', 'unshare', 'nsenter', 'mount'
_MASK = (
  '; nft add table ip nat'
  '; nft "add chain ip nat out {{ type nat hook postrouting priority 100; }}"'
  '; nft add rule ip nat out oifname {} masquerade'
)
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


def inside(
  module: str, *arguments: str, **options: Any
) -> subprocess.CompletedProcess:
  """Runs a module in namespaces of its own, where it may make `Hosts`.

  Args:
    module: the module's name, as after `python -m`.
    *arguments: the module's command line.
    **options: see `subprocess.run`.
  """
  return subprocess.run(
    [*_unshare(), sys.executable, '-m', module, *arguments],
    env=os.environ | {'PATH': _path()},
    cwd=pathlib.Path(__file__).parents[2],
    check=False,
    **options,
  )


class Hosts:
  """A bridge, and hosts that are linked to it, in the namespaces of `inside`.

  Args:
    number: the number of hosts.
    bandwidth: the rate of each link, in tc(8)'s notation; empty for no limit.
    folder: the folder in which the names of the hosts are kept.
    masked: whether all hosts except the first are masked.

  Attributes:
    number: see above.
  """

  def __init__(
    self,
    number: int,
    bandwidth: str,
    folder: pathlib.Path,
    *,
    masked: bool = False,
  ):
    self.number, self._names = number, folder / 'hosts'
    _sh('mount -t tmpfs none /run && mkdir /run/netns')
    _sh('ip link add name switch type bridge && ip link set switch up')
    names = [f'{SUBNET}.{i + 1} host{i}' for i in range(number)]
    self._names.write_text('\n'.join(['127.0.0.1 localhost', *names, '']))
    for i in range(number):
      _sh(f'ip netns add host{i}')
      box = f'router{i}' if masked and i else f'host{i}'  # On the bridge.
      if masked and i:
        _mask(i)
      _sh(f'ip link add name port{i} type veth peer name eth0 netns {box}')
      _sh(f'ip link set port{i} master switch')
      self.link(i, 'up')
      within = f'ip -n {box}'
      _sh(f'{within} address add {SUBNET}.{i + 1}/24 dev eth0')
      _sh(f'{within} link set eth0 up && {within} link set lo up')
      if bandwidth:  # Out of the host and into it.
        # A burst is free after a pause; a fast link needs a large one.
        burst = '64kb' if 'gbit' in bandwidth else '16kb'
        rate = f'root tbf rate {bandwidth} burst {burst} latency 100ms'
        _sh(f'tc -n {box} qdisc add dev eth0 {rate}')
        _sh(f'tc qdisc add dev port{i} {rate}')

  def link(self, i: int, state: str) -> None:
    """Sets the link of a host `up` or `down`."""
    _sh(f'ip link set port{i} {state}')

  def start(
    self, i: int, command: Sequence[str], **options: Any
  ) -> subprocess.Popen:
    """Starts a command on a host whose own name resolves to its address.

    Args:
      i: the host's index.
      command: the program and its arguments.
      **options: see `subprocess.Popen`.
    """
    enter = (
      f'mount --bind {self._names} /etc/hosts; hostname host{i}; exec "$@"'
    )
    return subprocess.Popen(
      [
        *f'nsenter --net=/run/netns/host{i} unshare --mount --uts'.split(),
        *('sh', '-c', enter, 'sh', *command),
      ],
      **options,
    )


def _mask(i: int) -> None:
  """Connects a host to a router, which is not on the bridge yet."""
  router = f'router{i}'
  enter = f'nsenter --net=/run/netns/{router} sh -ec'
  _sh(f'ip netns add {router}')
  _sh(f'ip -n {router} link add name lan type veth peer eth0 netns host{i}')
  for box, interface, last in ((router, 'lan', 1), (f'host{i}', 'eth0', 2)):
    within = f'ip -n {box}'
    _sh(f'{within} address add {PRIVATE}.{last}/24 dev {interface}')
    _sh(f'{within} link set {interface} up && {within} link set lo up')
  _sh(f'ip -n host{i} route add default via {PRIVATE}.1')
  forward = 'echo 1 > /proc/sys/net/ipv4/ip_forward'
  _sh(f"{enter} '{forward}{_MASK.format('eth0')}'")


def _sh(line: str) -> None:
  subprocess.run(line, shell=True, check=True)
