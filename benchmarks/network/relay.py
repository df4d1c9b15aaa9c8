"""Cost of an average of islands that only dial out.

  python -m benchmarks.network.relay --bandwidth=20mbit

The first host of an emulated cluster (cluster.py) is the coordinator. The
others are islands behind routers that masquerade, so all messages between them
pass through the coordinator's host: into it and out of it again. Times averages
in float32, one after another. Prints the milliseconds of an average on the
slowest host, the milliseconds that the coordinator's link needs for its bytes,
and their ratio, the share of the link that is used. The limit is 0.9. TCP is
told to use Reno, because even bare sockets use only 0.8 of the emulated links
with BBR or CUBIC. Writes relay.json.
"""

import argparse
import os
import pathlib

from benchmarks.network import cluster as emulated
from benchmarks.network import hidden, islands
from benchmarks.table import parser, report, Table
from tests.support import masked as support

LEAST = 0.9  # Our goal.
CONTROL = pathlib.Path('/proc/sys/net/ipv4/tcp_congestion_control')


def masked(options: argparse.Namespace) -> dict[str, float]:
  """Milliseconds of an average on this island; nothing on the first host."""
  CONTROL.write_text('reno')  # Of this network namespace.
  index, folder = os.environ['JAX_PROCESS_ID'], pathlib.Path(options.folder)
  if index == '0':
    support.coordinate(options.hosts - 1, folder)
    return {}
  import selsync_jax as ss

  strategies = {'an average': ss.Strategy(ss.every(1), ss.mean())}
  work, invitation = islands.idle_work(options), support.invitation(folder)
  found = islands.times(strategies, work, index, invitation, options)
  (folder / f'done{index}').touch()
  return found


def main() -> None:
  flags = parser(
    __doc__, 'relay.json', hosts=3, size=2_621_440, rounds=3, period=1
  )
  flags.add_argument(
    '--bandwidth', default='20mbit', help="in tc(8)'s notation"
  )
  options = flags.parse_args()
  options.limit, options.step = None, 0
  _, *each = emulated.figures(masked, options, masked=True)
  found = emulated.slowest(each)['an average']
  count = options.hosts - 1
  options.hosts = count  # Of islands.
  wire = count * hidden.on_wire(options, 'float32')
  share = wire / found
  row = [
    'through the coordinator',
    f'{found:.1f}',
    f'{wire:.1f}',
    f'{share:.3f}',
  ]
  title = (
    f'{count} masked islands, {options.bandwidth}, '
    f'{options.size / 1e6:.2f} M parameters'
  )
  table = Table(['an average', 'ms', "the link's ms", 'share'], [row], title)
  result = vars(options) | {'milliseconds': found, 'wire': wire, 'share': share}
  report(options.out, result, table, notes=[f'the limit is {LEAST:g}'])


if __name__ == '__main__':
  main()
