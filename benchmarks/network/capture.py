"""Tests whether the traffic between islands can be read on the network.

  python -m benchmarks.network.capture
  python -m benchmarks.network.capture --relay

Two islands average parameters on an emulated cluster
(benchmarks/network/cluster.py), while one of the hosts records every packet of
its interface. With `--relay`, it is the coordinator's host, and both islands
are behind routers that masquerade. Then another host sends it the same
parameters over plain TCP, to show that the search finds parameters that are
readable.

Without `--relay`, also compares the recording with the audit of the island on
that host: the bytes that its TCP connections carried to the other host, without
the coordinator's, and the bytes of the audit. TLS and gRPC add some.

Prints a line for each, writes capture.json. The exit code is 1 if packets
between the islands hold parameters, or if the two numbers differ by more than
1%.
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
from tests.support import masked
from tests.support.emulated import SUBNET

PARAMETERS = np.full(1_000_000, 1.2345678, np.float32)
SECRET = PARAMETERS[:16].tobytes()
PORT = 7171
EVERY_PROTOCOL = 3  # ETH_P_ALL, from linux/if_ether.h.
RECEIVE_BUFFER_FORCE = 33  # SO_RCVBUFFORCE, from asm-generic/socket.h.
IPV4, TCP = b'\x08\x00', 6
ADDRESS = socket.inet_aton(f'{SUBNET}.1')  # Of the host that records.
WORST = 0.01


@contextlib.contextmanager
def recorded(packets):
  """Adds every packet of this host's interface to a list."""
  stop = threading.Event()
  kind = socket.htons(EVERY_PROTOCOL)
  with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, kind) as wire:
    # Packets that find no room are not recorded.
    wire.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER_FORCE, 1 << 26)
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


def carried(packets, without):
  """The bytes that TCP carried from this host, except from one port.

  Sequence numbers count them, so it does not matter if the recording lacks a
  packet, or has a packet twice.
  """
  first, length = {}, {}
  for packet in packets:
    ip = packet[14:]  # After the header of Ethernet.
    if packet[12:14] != IPV4 or ip[9] != TCP or ip[12:16] != ADDRESS:
      continue
    tcp = ip[4 * (ip[0] & 15) :]
    flow, number = tcp[:4], int.from_bytes(tcp[4:8])
    size = int.from_bytes(ip[2:4]) - 4 * (ip[0] & 15) - 4 * (tcp[12] >> 4)
    end = number - first.setdefault(flow, number) + size
    length[flow] = max(length.get(flow, 0), end % (1 << 32))
  return sum(
    n for flow, n in length.items() if int.from_bytes(flow[:2]) != without
  )


def average(invitation, index, audit=None):
  """Averages the parameters as an island."""
  import jax.numpy as jnp

  import selsync_jax as ss

  params = jnp.asarray(PARAMETERS)
  strategy = ss.Strategy(ss.every(1), ss.mean())
  island = ss.Island.join(invitation, f'{index}', params, strategy, audit=audit)
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
  """One of the hosts; the first one records."""
  folder, index = pathlib.Path(options.folder), os.environ['JAX_PROCESS_ID']
  if index != '0':
    average(masked.invitation(folder), index)
    (folder / f'done{index}').touch()
    if index == '1':
      send()
    return {}
  from selsync_jax.islands.server import CoordinatorServer

  found = {}
  for name in ('islands', 'plain TCP'):
    packets: list[bytes] = []
    with recorded(packets):
      if name == 'islands' and options.masked:
        masked.coordinate(2, folder)
      elif name == 'islands':
        with CoordinatorServer(2, 'host0') as point:
          (folder / 'made').write_text(str(point.invitation))
          (folder / 'made').rename(folder / 'invitation')
          average(str(point.invitation), 0, folder / 'audit.jsonl')
        port = point.port
      else:
        receive()
    whole = b''.join(packets)
    found[name] = {'bytes': len(whole), 'readable': SECRET in whole}
    if name == 'islands' and not options.masked:
      rows = map(json.loads, (folder / 'audit.jsonl').open())
      audited = sum(row['bytes'] for row in rows if row.get('to') == '1')
      found[name] |= {'carried': carried(packets, port), 'audited': audited}
  return found


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--out', default='capture.json')
  about = 'record at the coordinator of islands that only dial out'
  parser.add_argument('--relay', action='store_true', help=about, dest='masked')
  options = parser.parse_args()
  hosts = 2 + options.masked
  found, *_ = emulated.figures(
    inside, options, hosts=hosts, bandwidth='200mbit'
  )
  pathlib.Path(options.out).write_text(json.dumps(found) + '\n')
  for name, each in found.items():
    can = 'can' if each['readable'] else 'cannot'
    print(f'{name}: {each["bytes"]:,} bytes recorded; they {can} be read')
  least = PARAMETERS.nbytes
  fine = all(each['bytes'] > least for each in found.values())
  fine &= found['plain TCP']['readable'] and not found['islands']['readable']
  if not options.masked:
    carried, audited = found['islands']['carried'], found['islands']['audited']
    more = carried / audited - 1
    print(
      f'TCP carried {carried:,} bytes, the audit has {audited:,}: {more:+.2%}'
    )
    fine &= abs(more) <= WORST
  sys.exit(not fine)


if __name__ == '__main__':
  main()
