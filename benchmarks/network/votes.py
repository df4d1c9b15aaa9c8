"""Cost of a vote at the coordinator, by the number of islands.

  python -m benchmarks.network.votes --islands 2 8 64 256 1000

At every vote each island sends the coordinator one byte, and hears whether any
has asked for an average. The coordinator is a separate process, and another
process has all islands, each with its own connection, over TLS. Prints the
CPU time of the coordinator for a vote; how long a vote takes when the islands
share all cores of this machine; the share of a core that the coordinator
needs for signs of life alone; and the bytes that it must send for a vote,
without the overhead of TLS. Writes votes.json.
"""

import argparse
import asyncio
import multiprocessing
from multiprocessing.connection import Connection
import os
import resource
import time
from typing import Any

from benchmarks.table import report, Table

TIMEOUT = 60.0


def serve(islands: int, pipe: Connection) -> None:
  """Runs a coordinator; reports its CPU time when asked."""
  from selsync_jax.islands.server import CoordinatorServer

  _allow(islands)
  with CoordinatorServer(islands) as point:
    pipe.send(str(point.invitation))
    while pipe.recv():
      pipe.send(time.process_time())


def _allow(islands: int) -> None:
  """Raises this process's limit to that many connections."""
  _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
  assert most > islands + 100


class Islands:
  """All islands, on one event loop.

  Args:
    invitation: the coordinator's invitation.
    islands: N, the number of islands.
  """

  def __init__(self, invitation: Any, islands: int):
    from selsync_jax.cluster.protocol import messages
    from selsync_jax.cluster.protocol.member import Member

    self._invitation, self._messages = invitation, messages
    self._members = [
      Member(messages.Join(f'island{i:05}', 'host:1', {}, TIMEOUT, False), '')
      for i in range(islands)
    ]
    self._frames: dict[int, Any] = {}
    self._began = time.monotonic()
    self._changed = asyncio.Event()

  async def join(self) -> None:
    """Connects all islands, and waits until they form a generation."""
    from selsync_jax.cluster import connection
    from selsync_jax.islands import credentials

    host, _, port = self._invitation.address.rpartition(':')
    context = credentials.client_context()
    few = asyncio.Semaphore(50)

    async def connect(i):
      async with few:
        await asyncio.get_running_loop().create_connection(
          lambda: connection.Frames(
            lambda frames: self._opened(i, frames),
            lambda _, content: self._hear(i, content),
            lambda _: None,
          ),
          host,
          int(port),
          ssl=context,
          server_hostname='',
        )

    await asyncio.gather(*map(connect, range(len(self._members))))
    await self._until(lambda member: member.upcoming)
    for member in self._members:
      [*member.enter()]

  def _opened(self, i, frames):
    self._frames[i] = frames
    hello = self._messages.Hello(self._invitation.token)
    frames.send(self._messages.encode(hello))
    self._members[i].opened()
    self._flush(i)

  def _flush(self, i):
    outgoing = self._members[i].outgoing
    while outgoing:
      self._frames[i].send(self._messages.encode(outgoing.popleft()))

  def _hear(self, i, content):
    message = self._messages.from_coordinator(content)
    self._members[i].hear(message, time.monotonic() - self._began)
    self._changed.set()

  async def _until(self, holds) -> None:
    waiting = [*self._members]
    while waiting := [member for member in waiting if not holds(member)]:
      self._changed.clear()
      await self._changed.wait()

  async def vote(self) -> None:
    """All islands vote, and hear the answer."""
    places = []
    for i, member in enumerate(self._members):
      places.append(member.arrive('vote', '', 'pmax', 'bool', (), b'\0'))
      self._flush(i)
    keys = {id(m): p.key for m, p in zip(self._members, places, strict=True)}
    await self._until(lambda member: keys[id(member)] in member._answers)
    for member, place in zip(self._members, places, strict=True):
      [*member.answer(place)]

  async def live(self, seconds: float) -> None:
    """Lets all islands only send signs of life."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
      for i, member in enumerate(self._members):
        member.tick(now - self._began)
        self._flush(i)
      await asyncio.sleep(0.25)


def measure(islands: int, votes: int, quiet: float) -> dict[str, float]:
  """The cost of a vote of that many islands."""
  from selsync_jax.cluster.protocol import messages
  from selsync_jax.islands.credentials import Invitation

  _allow(islands)
  spawn = multiprocessing.get_context('spawn')
  here, there = spawn.Pipe()
  point = spawn.Process(target=serve, args=(islands, there))
  point.start()
  invitation = Invitation.parse(here.recv())

  def taken():
    here.send(True)
    return here.recv(), time.perf_counter()

  async def run():
    each = Islands(invitation, islands)
    await each.join()
    for _ in range(3):
      await each.vote()
    cpu, began = taken()
    for _ in range(votes):
      await each.vote()
    voted, ended = taken()
    await each.live(quiet)
    lived, later = taken()
    return {
      'CPU': (voted - cpu) / votes,
      'takes': (ended - began) / votes,
      'signs': (lived - voted) / (later - ended),
      'sent': islands * len(messages.encode(answer)),
    }

  answer = messages.Answer((1, '', votes), False, b'\0')
  found = asyncio.run(run())
  here.send(False)
  point.join()
  return found


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  sizes = [2, 8, 64, 256, 1000]
  parser.add_argument('--islands', type=int, nargs='+', default=sizes)
  parser.add_argument('--votes', type=int, default=20)
  parser.add_argument('--quiet', type=float, default=20.0, help='seconds')
  parser.add_argument('--out', default='votes.json')
  options = parser.parse_args()
  found = {n: measure(n, options.votes, options.quiet) for n in options.islands}
  rows = [
    [
      *(f'{n:,}', f'{1e3 * each["CPU"]:.2f}', f'{1e6 * each["CPU"] / n:.0f}'),
      *(f'{1e3 * each["takes"]:.1f}', f'{each["signs"]:.3f}'),
      f'{each["sent"] / 1e3:,.1f}',
    ]
    for n, each in found.items()
  ]
  head = (
    *('islands', 'CPU, ms', 'us an island', 'takes, ms', 'signs, cores'),
    'sent, kB',
  )
  result = vars(options) | {'cores': os.cpu_count(), 'found': found}
  report(options.out, result, Table(head, rows, 'A vote at the coordinator'))


if __name__ == '__main__':
  main()
