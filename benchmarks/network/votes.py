"""Cost of a vote of islands at their meeting point, by number of islands.

  python -m benchmarks.network.votes --islands 2 8 64 256

At every vote each island sends the meeting point one byte and receives the
bytes of all islands. The meeting point is one process. All islands together are
another process, as threads with a TLS connection each. Prints the meeting
point's CPU time per vote, heartbeats included; the time of a vote when the
islands may use all cores of this machine, too; and the bytes that the meeting
point sends per vote, without the overhead of TLS and gRPC. Writes votes.json.
for a vote, without what TLS and gRPC add. Writes votes.json.
"""

import argparse
from concurrent import futures
import multiprocessing
from multiprocessing.connection import Connection
import os
import time

from benchmarks.table import report, Table


def serve(islands: int, pipe: Connection) -> None:
  """Runs a meeting point; reports its CPU time on request."""
  from selsync_jax.islands.meeting import MeetingPoint

  with MeetingPoint(islands) as point:
    pipe.send(str(point.invitation))
    while pipe.recv():
      pipe.send(time.process_time())


def measure(islands: int, votes: int) -> dict[str, float]:
  """Measures the cost of a vote of some islands."""
  from selsync_jax.islands.control import Control, encode, Member
  from selsync_jax.islands.invitation import Invitation, reach
  from selsync_jax.islands.meter import Meter

  spawn = multiprocessing.get_context('spawn')
  here, there = spawn.Pipe()
  point = spawn.Process(target=serve, args=(islands, there))
  point.start()
  invitation = Invitation.parse(here.recv())

  def join(index):
    with reach(invitation, 600.0) as (_, _, client):
      member = Member(f'island{index:05}', 'host:1', 'run', 600.0, False)
      address, token = invitation.address, invitation.token
      control = Control(client, address, token, member, Meter())
    control.enter()
    return control

  def taken():
    here.send(True)
    return here.recv(), time.perf_counter()

  def share(control, count):
    for _ in range(count):
      control.share('', b'.')

  with futures.ThreadPoolExecutor(islands) as pool:
    controls = [*pool.map(join, range(islands))]

    def all_share(count):
      for call in [pool.submit(share, c, count) for c in controls]:
        call.result()

    all_share(3)
    cpu, began = taken()
    all_share(votes)
    cpu_after, ended = taken()
    for control in controls:
      control.leave(True)
  here.send(False)
  point.join()
  head = {'shared': (1, '', votes), 'admits': False}
  return {
    'CPU': (cpu_after - cpu) / votes,
    'takes': (ended - began) / votes,
    'sent': islands * len(encode(head, b'.' * islands)),
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--islands', type=int, nargs='+', default=[2, 8, 64, 256])
  parser.add_argument('--votes', type=int, default=20)
  parser.add_argument('--out', default='votes.json')
  options = parser.parse_args()
  found = {n: measure(n, options.votes) for n in options.islands}
  rows = [
    [
      *(f'{n:,}', f'{1e3 * each["CPU"]:.2f}', f'{1e6 * each["CPU"] / n:.0f}'),
      *(f'{1e3 * each["takes"]:.1f}', f'{each["sent"] / 1e3:,.1f}'),
    ]
    for n, each in found.items()
  ]
  head = 'islands', 'CPU, ms', 'us an island', 'takes, ms', 'sent, kB'
  result = vars(options) | {'cores': os.cpu_count(), 'found': found}
  report(options.out, result, Table(head, rows, 'A vote at the meeting point'))


if __name__ == '__main__':
  main()
