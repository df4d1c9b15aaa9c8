"""One host of an emulated cluster (cluster.py), seen from inside."""

import argparse
from collections.abc import Iterator
import contextlib
import importlib
import json
import os
import pathlib
import sys
import time


def take_own_cores(host: int, hosts: int) -> None:
  """Gives this host its own cores, if there are enough for all hosts."""
  cores = sorted(os.sched_getaffinity(0))
  os.sched_setaffinity(0, cores[host::hosts] or cores)


@contextlib.contextmanager
def joined(devices: int = 1) -> Iterator[int]:
  """Joins the cluster with some devices, and leaves it together with all hosts.

  Yields:
    The number of hosts.
  """
  import jax

  from selsync_jax.cluster import processes

  spec = processes.process_spec()
  take_own_cores(spec.process, spec.processes)
  jax.config.update('jax_num_cpu_devices', devices)
  with processes.join(*spec):
    yield spec.processes
    processes.wait_for_all('done')


@contextlib.contextmanager
def invited(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
  """Gives this host its own cores, and connects the hosts as islands.

  Args:
    options: the host's options.

  Yields:
    The name of this host's island, and the invitation.
  """
  from selsync_jax.islands.server import CoordinatorServer

  index = int(os.environ['JAX_PROCESS_ID'])
  hosts = int(os.environ['JAX_NUM_PROCESSES'])
  take_own_cores(index, hosts)
  folder = pathlib.Path(options.folder)
  made, invitation = folder / 'made', folder / 'invitation'
  with contextlib.ExitStack() as stack:
    if index == 0:
      point = stack.enter_context(CoordinatorServer(hosts, 'host0'))
      made.write_text(str(point.invitation))
      made.rename(invitation)  # Other hosts never see half a file.
    while not invitation.exists():
      time.sleep(0.1)
    yield f'host{index}', invitation.read_text()


def bytes_sent() -> int:
  """Bytes that the emulated network interface has sent so far."""
  for line in pathlib.Path('/proc/self/net/dev').read_text().splitlines():
    name, _, counters = line.partition(':')
    if name.strip() == 'eth0':
      return int(counters.split()[8])
  raise RuntimeError('this host has no interface eth0')


def main() -> None:
  """Calls `MODULE:FUNCTION` with options in JSON, and prints its result."""
  name, options = sys.argv[1:]
  module, _, function = name.partition(':')
  measure = getattr(importlib.import_module(module), function)
  print(json.dumps(measure(argparse.Namespace(**json.loads(options)))))


if __name__ == '__main__':
  main()
