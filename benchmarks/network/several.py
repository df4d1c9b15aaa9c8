"""Cost of an average of two islands that have several hosts each.

  python -m benchmarks.network.several --hosts=2

Times averages in float32 between two islands on an emulated cluster
(cluster.py): islands of one host, and islands of --hosts hosts that share the
messages. Links between islands have the given bandwidth; links within an island
are not limited. Prints milliseconds of the slowest host, next to the limit of
the wire. Writes several.json.
"""

import argparse
import contextlib
import os

from benchmarks.network import cluster as emulated
from benchmarks.network import hidden, islands
from benchmarks.table import report, Table

PORT, ISLANDS = 7171, 2


def of_island(options: argparse.Namespace) -> float:
  """Milliseconds of an average, in a process of an island."""
  from benchmarks.network import host
  from selsync_jax.cluster import processes

  site, index = options.site, int(os.environ['JAX_PROCESS_ID'])
  first = index // site * site
  with contextlib.ExitStack() as stack:
    joined = stack.enter_context(host.invited(options))
    if site > 1:
      place = f'host{first}:{PORT}', site, index - first
      stack.enter_context(processes.join(*place))
    import jax
    import jax.numpy as jnp

    import selsync_jax as ss

    mesh = jax.sharding.Mesh(jax.devices(), 'devices')
    split = jax.sharding.NamedSharding(mesh, jax.P('devices'))
    zeros = jax.jit(lambda: jnp.zeros(options.size), out_shardings=split)
    shrink = jax.jit(lambda params: (0.999 * params, params))
    strategies = {'average': ss.Strategy(ss.every(1), ss.mean())}
    work = zeros(), lambda params: jax.block_until_ready(shrink(params))
    return islands.times(strategies, work, *joined, options)['average']


def slowest(options: argparse.Namespace, site: int) -> float:
  """Milliseconds on the slowest host, with `site` hosts for each island."""
  return max(
    emulated.figures(of_island, options, hosts=ISLANDS * site, site=site)
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  add = parser.add_argument
  add('--hosts', type=int, default=2, help='of each island')
  add('--bandwidth', default='100mbit', help="in tc(8)'s notation")
  add('--period', type=int, default=1, help='averages timed together')
  add('--size', type=int, default=16_777_216, help='float32s')
  add('--rounds', type=int, default=3)
  add('--out', default='several.json')
  options = parser.parse_args()
  options.limit = None  # The network is slow, not the senders.
  found = {site: slowest(options, site) for site in (1, options.hosts)}
  options.hosts = ISLANDS
  wire = hidden.on_wire(options, 'float32')
  rows = [
    [f'{site}', f'{ms:.0f}', f'{wire / site:.0f}', f'{ms / found[1]:.3f}']
    for site, ms in found.items()
  ]
  head = ['hosts of an island', 'ms', 'the wire', 'of one host']
  table = Table(head, rows, f'{options.bandwidth}, {options.size / 1e6:.1f} M')
  result = {'cores': os.cpu_count(), 'milliseconds': found}
  report(options.out, vars(options) | result, table)


if __name__ == '__main__':
  main()
