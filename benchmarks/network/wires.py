"""Cost of compressed averages on a slow network, next to float32.

  python -m benchmarks.network.wires --hosts=4 --parts int8 top_k

Runs the float32 wire, and other wires and reducers, alone on an emulated
cluster (benchmarks/network/cluster.py), one worker per host, on vectors as
large as the parameters of a network. Prints the time of each, the bytes that a
host's interface sends meanwhile, and the bytes that the part reports. For
time and bytes it also prints the ratio to float32. Writes wires.json. The
limits for time and bytes are 0.30 and 0.27 for int8, and 0.10 for top_k.
"""

import argparse
import os
import statistics
from typing import Any

from benchmarks.network import cluster as emulated
from benchmarks.table import report, Table

DENSITY, RANK = 0.01, 4


def parts() -> dict[str, tuple[Any, Any, Any]]:
  """The functions to time: `init`, one step to the next, and `sends`."""
  from selsync_jax.sync import power_sgd, reducers, sparse, wires
  from selsync_jax.sync.averagers import mean

  averages = {
    'float32': mean(wire=wires.float32()),
    'bfloat16': mean(wire=wires.bfloat16()),
    'int8': mean(wire=wires.int8()),
    'int4': mean(wire=wires.int4()),
    'int2': mean(wire=wires.int2()),
  }
  reductions = {
    'int8 reducer': reducers.int8(),
    'top_k': sparse.top_k(DENSITY),
    'micro': sparse.micro(DENSITY),
    'exdyna': sparse.exdyna(DENSITY),
    'power_sgd': power_sgd.power_sgd(RANK),
  }
  return {
    **{name: (m.init, m.apply, m.sends) for name, m in averages.items()},
    **{name: (r.init, r.update, r.sends) for name, r in reductions.items()},
  }


def alone(tree: Any, init: Any, exchange: Any, mapper: Any = None) -> Any:
  """Returns `run(steps)`, which exchanges a tree with the other hosts."""
  import jax
  import numpy as np

  from selsync_jax.devices import mappers

  mapper = mapper or mappers.Pmap(jax.process_count())
  step = mapper.map_workers(exchange, donate=(1,))
  values, state = mapper.place(
    jax.tree.map(lambda x: np.asarray(x)[None], (tree, init(tree)))
  )

  def run(steps):
    nonlocal state
    for _ in range(steps):
      mean, state = step(values, state)
      jax.block_until_ready((mean, state))

  return run


def figures(options: argparse.Namespace) -> dict[str, dict[str, float]]:
  """The figures of each part, on this host of the cluster."""
  import jax
  import numpy as np

  from benchmarks import variants
  from benchmarks.network import host

  with host.joined() as hosts:
    rng = np.random.default_rng(jax.process_index())
    tree = jax.tree.map(
      lambda p: rng.normal(0, 0.01, p.shape).astype(np.float32),
      variants.convnet(options.width).params,
    )
    timed = {name: parts()[name] for name in options.parts}
    runs = {
      name: alone(tree, init, exchange)
      for name, (init, exchange, _) in timed.items()
    }
    seconds = variants.time_interleaved(runs, options.steps, options.rounds)
    result = {}
    for name, (_, _, sends) in timed.items():
      before = host.bytes_sent()
      runs[name](options.steps)
      collectives = sends(tree, hosts)
      result[name] = {
        'ms': 1e3 * statistics.median(seconds[name]),
        'sent': (host.bytes_sent() - before) / options.steps,
        'named': sum(c.sent(hosts) for c in collectives),
      }
  return result


def table(rows: dict[str, dict[str, float]], title: str) -> Table:
  """The rows as a table to print; bytes are the mean over hosts."""
  dense = rows['float32']
  return Table(
    ('', 'ms', 'MB sent', 'MB named', 'time', 'bytes'),
    [
      [
        name,
        f'{row["ms"]:.1f}',
        f'{row["sent"] / 1e6:.3f}',
        f'{row["named"] / 1e6:.3f}',
        f'{row["ms"] / dense["ms"]:.3f}',
        f'{row["sent"] / dense["sent"]:.3f}',
      ]
      for name, row in rows.items()
    ],
    title,
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--hosts', type=int, default=4)
  parser.add_argument('--bandwidth', default='200mbit')
  # 1.35 M parameters: 5.4 MB in float32.
  parser.add_argument('--width', type=int, default=96, help='of the network')
  parser.add_argument('--steps', type=int, default=3, help='per round')
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--out', default='wires.json')
  parser.add_argument(
    '--parts', nargs='+', default=[], help='float32 and these; none: all'
  )
  options = parser.parse_args()
  named = ['float32', *options.parts]
  options.parts = named if options.parts else [*parts()]
  rows = emulated.means(emulated.figures(figures, options))
  result = vars(options) | {'cores': os.cpu_count(), 'rows': rows}
  title = f'{options.hosts} hosts, {options.bandwidth}'
  report(options.out, result, table(rows, title))


if __name__ == '__main__':
  main()
