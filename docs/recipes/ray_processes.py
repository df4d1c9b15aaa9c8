"""Runs a command as the processes of one run, on hosts that Ray chooses.

  python docs/recipes/ray_processes.py --processes=4 --gpus=1 -- \
    python train.py --config=configs/digits.py:selsync --config.workers=4 \
    --workdir=/shared/runs/digits

Start it in a checkout that all hosts share, on a host of the Ray cluster, with
the cluster's version of Ray (`pip install ray`). Without a cluster, Ray starts
one on this machine. Any script works that calls `ss.join()`.

Ray Train's JaxTrainer is not used here: it connects the processes itself, so
`ss.join()` could not.
"""

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class Host:
  """An actor that runs one process; Ray gives it the process's GPUs."""

  child: subprocess.Popen | None = None

  def address(self):
    """Returns a `HOST:PORT` of this host that no program uses."""
    with socket.create_server(('', 0)) as server:
      port = server.getsockname()[1]
    return f'{ray.util.get_node_ip_address()}:{port}'

  def run(self, command, folder, variables):
    """Runs the command and returns its exit code."""
    self.child = subprocess.Popen(
      command, cwd=folder, env=os.environ | variables
    )
    code = self.child.wait()
    return code if code >= 0 else 128 - code

  def stop(self):
    """Asks the process to save and exit with 75."""
    if self.child:
      self.child.send_signal(signal.SIGTERM)


def variables(address, processes, index, token):
  """Returns the environment variables that `ss.join()` reads."""
  return {
    'JAX_COORDINATOR_ADDRESS': address,
    'JAX_NUM_PROCESSES': str(processes),
    'JAX_PROCESS_ID': str(index),
    'SELSYNC_CLUSTER_TOKEN': token,
    'PYTHONUNBUFFERED': '1',
  }


def run(command, processes, cpus, gpus):
  """Runs the processes to their end and returns the exit code."""
  asked = []
  ray.init()
  for number in signal.SIGTERM, signal.SIGINT:
    signal.signal(number, lambda number, frame: asked.append(number))
  bundle = {'CPU': cpus} | ({'GPU': gpus} if gpus else {})
  group = ray.util.placement_group([bundle] * processes, strategy='SPREAD')
  hosts = [
    ray.remote(Host)
    .options(
      num_cpus=cpus,
      num_gpus=gpus,
      max_concurrency=2,  # So that it can stop what it runs.
      scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
    )
    .remote()
    for index in range(processes)
  ]
  address = ray.get(hosts[0].address.remote())
  token = secrets.token_hex(16)
  running = [
    host.run.remote(
      command, os.getcwd(), variables(address, processes, index, token)
    )
    for index, host in enumerate(hosts)
  ]
  waiting = running
  while waiting:
    _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=1)
    if asked:  # All processes stop after the same step, and save.
      hosts[0].stop.remote()
      asked.clear()
  return next((code for code in ray.get(running) if code), 0)


if __name__ == '__main__':
  parser = argparse.ArgumentParser()
  parser.add_argument('--processes', type=int, required=True)
  parser.add_argument('--cpus', type=int, default=1, help='Of each process.')
  parser.add_argument('--gpus', type=int, default=0, help='Of each process.')
  parser.add_argument('command', nargs='+', help='After --.')
  sys.exit(run(**vars(parser.parse_args())))
