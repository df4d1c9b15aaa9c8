"""Tests whether the traffic between islands can be read on the network.

  python -m benchmarks.network.capture

Two islands average parameters on an emulated cluster
(benchmarks/network/cluster.py), while one of the hosts records every packet of
its interface. Then the other host sends the same parameters over plain TCP, to
show that the search finds parameters that are readable. Prints one line, writes
capture.json. The exit code is 1 if packets between the islands hold parameters.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import sys
import threading
import time

import numpy as np

from benchmarks.network import cluster as emulated

PARAMETERS = np.full(200_000, 1.2345678, np.float32)
SECRET = PARAMETERS[:16].tobytes()
PORT = 7171
EVERY_PROTOCOL = 3  # ETH_P_ALL, from linux/if_ether.h.


@contextlib.contextmanager
def recorded(packets):
  """Adds every packet of this host's interface to a list."""
  stop = threading.Event()
  kind = socket.htons(EVERY_PROTOCOL)
  with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, kind) as wire:
    wire.bind(('eth0', 0))
    wire.settimeout(0.1)

    def listen():
      while not stop.is_set():
        with contextlib.suppress(TimeoutError):
          packets.append(wire.recv(1 << 17))

    thread = threading.Thread(target=listen)
    thread.start()
    try:
      yield
    finally:
      time.sleep(0.5)  # For the last packets.
      stop.set()
      thread.join()


def average(invitation, index):
  """Averages the parameters as an island."""
  import jax.numpy as jnp

  import selsync_jax as ss

  params = jnp.asarray(PARAMETERS)
  strategy = ss.Strategy(ss.every(1), ss.mean())
  island = ss.Island.join(invitation, f'{index}', params, strategy)
  averaged = island.leave(island.after_step(params))
  assert (np.asarray(averaged) == PARAMETERS).all()


def receive():
  """Receives the parameters over plain TCP."""
  with socket.create_server(('', PORT)) as server:
    other, _ = server.accept()
    with other, other.makefile('rb') as file:
      assert file.read() == PARAMETERS.tobytes()


def send():
  """Sends the parameters as soon as the other host listens."""
  while True:
    with contextlib.suppress(OSError):
      with socket.create_connection(('host0', PORT)) as other:
        other.sendall(PARAMETERS.tobytes())
      return
    time.sleep(0.1)


def inside(options):
  """One of the two hosts; the first one records."""
  from selsync_jax.islands.server import CoordinatorServer

  folder = pathlib.Path(options.folder)
  if os.environ['JAX_PROCESS_ID'] == '1':
    while not (folder / 'invitation').exists():
      time.sleep(0.1)
    average((folder / 'invitation').read_text(), 1)
    send()
    return {}
  found = {}
  for name in ('islands', 'plain TCP'):
    packets: list[bytes] = []
    with recorded(packets):
      if name == 'islands':
        with CoordinatorServer(2, 'host0') as point:
          (folder / 'made').write_text(str(point.invitation))
          (folder / 'made').rename(folder / 'invitation')
          average(str(point.invitation), 0)
      else:
        receive()
    whole = b''.join(packets)
    found[name] = {'bytes': len(whole), 'readable': SECRET in whole}
  return found


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--out', default='capture.json')
  options = parser.parse_args()
  found, _ = emulated.figures(inside, options, hosts=2, bandwidth='200mbit')
  pathlib.Path(options.out).write_text(json.dumps(found) + '\n')
  for name, each in found.items():
    can = 'can' if each['readable'] else 'cannot'
    print(f'{name}: {each["bytes"]:,} bytes recorded; they {can} be read')
  least = PARAMETERS.nbytes
  fine = all(each['bytes'] > least for each in found.values())
  fine &= found['plain TCP']['readable'] and not found['islands']['readable']
  sys.exit(not fine)


if __name__ == '__main__':
  main()
