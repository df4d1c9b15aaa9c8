"""Time until two processes meet while a stranger uses their port.

  python -m stress.strangers --rounds=100

In each round, two processes meet (selsync_jax/cluster/world.py) at a new port.
Meanwhile a third process connects there again and again, and sends everything
that tests/support/strangers.py lists. It has the run's token, except in the
message of an impostor, which would become a member with it. Prints the times to
meet, and writes strangers.json. The exit code is 1 above the limit of 5 s.
"""

import argparse
import contextlib
import json
import multiprocessing
import pathlib
import socket
import statistics
import sys
import time
from typing import Any

from selsync_jax.cluster.world import World
from tests.support.members import TOKEN
from tests.support.strangers import ATTACKS

LIMIT = 5.0
PROCESSES = 2
LATE = 0.3  # Seconds by which process 1 starts after the stranger.


def member(
  process: int, ports: list[int], ready: Any, met: Any, seconds: Any
) -> None:
  """Meets the other process at each of the ports, and reports the times."""
  agreed = {'processes': PROCESSES}
  for port in ports:
    ready.wait()
    time.sleep(LATE * process)
    began = time.monotonic()
    world = World(f'localhost:{port}', process, agreed, 'x', 60, TOKEN)
    seconds.put(time.monotonic() - began)
    met.release()
    ready.wait()
    world.leave()
    world.close()


def strangers(ports: list[int], ready: Any, met: Any, attempts: Any) -> None:
  """Uses each of the ports until the two have met there."""
  for port in ports:
    opened = []
    ready.wait()
    while met.get_value() < PROCESSES:
      for name, attack in ATTACKS.items():
        with contextlib.suppress(OSError):  # Refused, or cut off.
          opened.append(socket.create_connection(('localhost', port)))
          attack(opened[-1], 'a guess' if name == 'an impostor' else TOKEN)
    attempts.put(len(opened))
    for _ in range(PROCESSES):
      met.acquire()
    ready.wait()
    for stranger in opened:
      stranger.close()


def free_ports(count: int) -> list[int]:
  """Ports that are free now."""
  with contextlib.ExitStack() as stack:
    servers = [
      stack.enter_context(socket.create_server(('localhost', 0)))
      for _ in range(count)
    ]
    return [server.getsockname()[1] for server in servers]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=100)
  parser.add_argument('--out', default='strangers.json')
  options = parser.parse_args()
  ports = free_ports(options.rounds)
  context = multiprocessing.get_context('spawn')
  ready, met = context.Barrier(PROCESSES + 1), context.Semaphore(0)
  seconds, attempts = context.Queue(), context.Queue()
  targets = [
    *((member, (i, ports, ready, met, seconds)) for i in range(PROCESSES)),
    (strangers, (ports, ready, met, attempts)),
  ]
  children = [context.Process(target=f, args=args) for f, args in targets]
  for child in children:
    child.start()
  times = [seconds.get() for _ in range(PROCESSES * options.rounds)]
  connections = sum(attempts.get() for _ in ports)
  for child in children:
    child.join()
  print(
    f'{options.rounds} rounds, {connections} connections of the stranger; '
    f'seconds to meet: median {statistics.median(times):.2f}, '
    f'longest {max(times):.2f}; the limit is {LIMIT:g}'
  )
  result = {'seconds': times, 'connections': connections}
  pathlib.Path(options.out).write_text(json.dumps(result) + '\n')
  sys.exit(max(times) > LIMIT)


if __name__ == '__main__':
  main()
