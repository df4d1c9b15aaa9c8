"""Cost of an average of islands on a slow network, next to bare sockets.

  python -m benchmarks.network.hidden --hosts=4 --bandwidth=110mbit
  python -m benchmarks.network.hidden --hosts=4 --bandwidth=200mbit --alone

One island runs on each host of an emulated cluster (cluster.py). A step leaves
the CPU idle for some milliseconds, like a step on a GPU, and then changes the
parameters. The average runs in the background, before the step, or at every
step (BSP). It is compared with three things: a control, where a thread moves
the same bytes between the hosts over bare TCP beside the steps; JAX's own
processes, which wait for the same average; and the limit of the wire. Prints
milliseconds of a step of the slowest host. The limit is 1.10 times the control.

With `--alone`, there are no steps. It times averages in float32 and int8, one
after another, with limits of 1.15 times the wire and 0.30 times float32, and an
average that only moves the bytes of float32.
Writes hidden.json.
"""

import argparse
from collections.abc import Callable
from concurrent import futures
import contextlib
import os
import socket
import statistics
import threading
import time

from benchmarks.network import cluster as emulated
from benchmarks.network import islands
from benchmarks.network.plan import PAYLOAD
from benchmarks.table import parser, report, Table
from selsync_jax.sync.network import bandwidth as bits_per_second

PORT = 7171
CONTROL, BEHIND = 'a bare sender beside the steps', 'islands, behind the steps'
BARE = 'float32, a bare sender'
WIRES = 'float32', 'int8'
HIDDEN, OF_WIRE, OF_FLOAT32 = 1.10, 1.15, 0.30  # Our goals.


def sent(options: argparse.Namespace, wire: str) -> float:
  """Returns the bytes that a host sends for an average."""
  import jax
  import numpy as np

  import selsync_jax as ss

  shape = jax.ShapeDtypeStruct((options.size,), np.float32)
  messages = ss.mean(wire=getattr(ss.wires, wire)()).sends(shape, options.hosts)
  return sum(each.sent(options.hosts) for each in messages)


class Sender:
  """Moves the bytes of an average between the hosts, over bare TCP.

  Like islands, a host asks all others for their shares at the same time, and
  does so twice.
  """

  def __init__(self, options: argparse.Namespace):
    index, hosts = int(os.environ['JAX_PROCESS_ID']), options.hosts
    size = sent(options, options.wire) / (2 * (hosts - 1))
    self._share = bytes(int(size))
    others = [(index + distance) % hosts for distance in range(1, hosts)]
    with socket.create_server(('', PORT), backlog=hosts) as server:
      self._links = [_connected(f'host{other}') for other in others]
      for _ in others:
        link, _ = server.accept()
        threading.Thread(target=self._serve, args=[link]).start()

  def _serve(self, link: socket.socket) -> None:
    while link.recv(1):
      link.sendall(self._share)

  def average(self) -> None:
    """Fetches the shares of an average."""
    for _ in range(2):
      with futures.ThreadPoolExecutor(len(self._links)) as pool:
        list(pool.map(self._fetch, self._links))

  def _fetch(self, link: socket.socket) -> None:
    link.sendall(b'.')
    left = memoryview(bytearray(len(self._share)))
    while left:
      left = left[link.recv_into(left) :]

  def close(self) -> None:
    """Stops fetching, and serves the other processes until they stop, too."""
    for link in self._links:
      link.close()


def _connected(host: str) -> socket.socket:
  while True:
    with contextlib.suppress(ConnectionRefusedError):
      return socket.create_connection((host, PORT))
    time.sleep(0.1)


def each_step(
  options: argparse.Namespace, before: Callable[[int], None]
) -> float:
  """Milliseconds of an idle step; `before(i)` is called before step i."""
  state, step = islands.idle_work(options)
  steps, found = iter(range(10**9)), []

  def one(state):
    before(next(steps))
    return step(state)[0]

  for _ in range(options.rounds + 2):
    state, ms = islands.round_of(one, state, options.period)
    found.append(ms)
  return statistics.median(found[2:])


def beside(options: argparse.Namespace) -> dict[str, float]:
  """The control, on this host."""
  sender, last = Sender(options), futures.Future()
  last.set_result(None)
  with futures.ThreadPoolExecutor(1) as pool:

    def before(step):
      nonlocal last
      if step % options.period == 0:
        last.result()
        last = pool.submit(sender.average)

    found = {CONTROL: each_step(options, before)}
  sender.close()
  return found


def bare(options: argparse.Namespace) -> dict[str, float]:
  """An average that only moves bytes, on this host."""
  sender = Sender(options)
  found = {BARE: each_step(options, lambda _: sender.average())}
  sender.close()
  return found


def of_processes(options: argparse.Namespace) -> dict[str, float]:
  """Times JAX's own processes, which wait for each average, on this host."""
  from benchmarks.network import host, wires

  with host.joined():
    import jax.numpy as jnp

    init, mean, _ = wires.parts()[options.wire]
    average = wires.alone(jnp.zeros(options.size), init, mean)

    def before(step):
      if step % options.period == 0:
        average(1)

    return {'JAX processes, before the step': each_step(options, before)}


def of_islands(options: argparse.Namespace) -> dict[str, float]:
  """Islands, and then the control, on this host."""
  from benchmarks.network import host
  import selsync_jax as ss

  means = {name: ss.mean(wire=getattr(ss.wires, name)()) for name in WIRES}
  mean, period = means[options.wire], options.period
  strategies = {
    'nothing sent': ss.Strategy(ss.every(10**9), mean),
    BEHIND: ss.Strategy(ss.every(period), ss.delayed(mean, period - 1)),
    'islands, before the step': ss.Strategy(ss.every(period), mean),
    'islands, BSP': ss.Strategy(ss.every(1), mean),
  }
  if options.alone:
    strategies = {
      n: ss.Strategy(ss.every(1), each) for n, each in means.items()
    }
  with host.invited(options) as joined:
    work = islands.idle_work(options)
    found = islands.times(strategies, work, *joined, options)
    return found | (bare(options) if options.alone else beside(options))


def on_wire(options: argparse.Namespace, wire: str) -> float:
  """Milliseconds of an average, if nothing but the network takes time."""
  rate = PAYLOAD * bits_per_second(options.bandwidth) / 8
  return 1e3 * sent(options, wire) / rate


def title(options: argparse.Namespace) -> str:
  """The settings that both tables share."""
  size = f'{options.size / 1e6:.2f} M parameters'
  return f'{options.hosts} hosts, {options.bandwidth}, {size}'


def averages(
  options: argparse.Namespace, found: dict[str, float]
) -> tuple[Table, str]:
  """The table of averages alone, and their limits."""
  wires = {name: on_wire(options, name) for name in WIRES}
  limits = wires | {BARE: wires['float32']}
  rows = [
    [name, f'{ms:.1f}', f'{limits[name]:.1f}', f'{ms / limits[name]:.3f}']
    for name, ms in found.items()
  ]
  share = found['int8'] / found['float32']
  return Table(['', 'ms', 'the wire', 'ratio'], rows, title(options)), (
    f'limit of float32 {OF_WIRE:g} times the wire; int8 takes {share:.3f} of '
    f'float32, the limit is {OF_FLOAT32:g}'
  )


def steps(
  options: argparse.Namespace, found: dict[str, float]
) -> tuple[Table, str]:
  """The table of steps with averages, and their limit."""
  each = on_wire(options, options.wire) / options.period
  found['limit of the wire'] = max(found['nothing sent'], each)
  control = found[CONTROL]
  rows = [
    [name, f'{ms:.2f}', f'{ms / control:.3f}'] for name, ms in found.items()
  ]
  what = f'{options.wire}, an average every {options.period} steps'
  table = Table(
    ['', 'ms a step', 'of the control'], rows, f'{title(options)} in {what}'
  )
  return table, f'the limit behind the steps is {HIDDEN:g} of the control'


def main() -> None:
  flags = parser(
    __doc__, 'hidden.json', hosts=4, period=20, size=1_310_720, rounds=5
  )
  add = flags.add_argument
  add('--bandwidth', default='110mbit', help="in tc(8)'s notation")
  add('--step', type=float, default=60, help='milliseconds')
  add('--wire', choices=WIRES, default='float32')
  add('--alone', action='store_true', help='averages without steps')
  options = flags.parse_args()
  options.limit = None  # The network is slow, not the senders.
  if options.alone:
    options.step = 0
  found = emulated.slowest(emulated.figures(of_islands, options))
  if not options.alone:
    each = emulated.figures(of_processes, options)
    found |= emulated.slowest(each)
  table, note = (averages if options.alone else steps)(options, found)
  result = vars(options) | {'cores': os.cpu_count(), 'milliseconds': found}
  report(options.out, result, table, notes=[note])


if __name__ == '__main__':
  main()
