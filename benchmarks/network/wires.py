"""Cost of averages on a slow network, by part or by layout of devices.

  python -m benchmarks.network.wires --hosts=4 --parts int8 top_k
  python -m benchmarks.network.wires --hosts=2 --devices=4

Runs the float32 wire, and other wires and reducers, alone on an emulated
cluster (benchmarks/network/cluster.py), one worker per host, on vectors as
large as the parameters of a network. If a host has several --devices, it runs
the float32 wire alone instead, with one device per host and in each layout
(workers x data x fsdp). Prints the time of each, the bytes that a host's
interface sends meanwhile, and the bytes that the part reports. For time and
bytes it also prints the ratio to the first row, and for bytes the ratio to the
reported ones. Writes wires.json. The limits for time and bytes are 0.30 and
0.27 for int8, and 0.10 for top_k; for layouts they are 1.15 for time, and 1.10
for bytes relative to the reported ones.
"""

import argparse
import os
import statistics
from typing import Any

from benchmarks.network import cluster as emulated
from benchmarks.table import parser, report, Table

DENSITY, RANK = 0.01, 4
Part = tuple[Any, Any, Any]
"""The functions to time: `init`, one step to the next, and `sends`."""


def parts() -> dict[str, Part]:
  """The wires and reducers by name."""
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


def layouts(workers: int, devices: int) -> list[Any]:
  """One device per worker, and every way to divide several devices."""
  from selsync_jax.devices.layout import Layout

  ways = [n for n in range(1, devices + 1) if devices % n == 0]
  inside = [(1, 1), *((devices // fsdp, fsdp) for fsdp in ways)]
  return [Layout(workers, data, fsdp) for data, fsdp in inside]


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
  """The figures of each row, on this host of the cluster."""
  import jax
  import numpy as np

  from benchmarks import variants
  from benchmarks.network import host

  with host.joined(options.devices) as hosts:
    rng = np.random.default_rng(jax.process_index())
    tree = jax.tree.map(
      lambda p: rng.normal(0, 0.01, p.shape).astype(np.float32),
      variants.convnet(options.width).params,
    )
    timed = {name: (parts()[name], None) for name in options.parts}
    if options.devices > 1:
      timed = {
        f'{x.workers}x{x.data}x{x.fsdp}': (parts()['float32'], x)
        for x in layouts(hosts, options.devices)
      }
    runs = {
      name: alone(tree, init, exchange, mapper)
      for name, ((init, exchange, _), mapper) in timed.items()
    }
    seconds = variants.time_interleaved(runs, options.steps, options.rounds)
    result = {}
    for name, ((_, _, sends), _) in timed.items():
      before = host.bytes_sent()
      runs[name](options.steps)
      result[name] = {
        'ms': 1e3 * statistics.median(seconds[name]),
        'sent': (host.bytes_sent() - before) / options.steps,
        'named': sum(c.sent(hosts) for c in sends(tree, hosts)),
      }
  return result


def table(rows: dict[str, dict[str, float]], title: str) -> Table:
  """The rows as a table to print; bytes are the mean over hosts."""
  first = next(iter(rows.values()))
  return Table(
    ('', 'ms', 'MB sent', 'MB named', 'time', 'bytes', 'of named'),
    [
      [
        name,
        f'{row["ms"]:.1f}',
        f'{row["sent"] / 1e6:.3f}',
        f'{row["named"] / 1e6:.3f}',
        f'{row["ms"] / first["ms"]:.3f}',
        f'{row["sent"] / first["sent"]:.3f}',
        f'{row["sent"] / row["named"]:.3f}',
      ]
      for name, row in rows.items()
    ],
    title,
  )


def main() -> None:
  # Width 96: 1.35 M parameters, 5.4 MB in float32.
  flags = parser(
    __doc__, 'wires.json', hosts=4, devices=1, width=96, steps=3, rounds=7
  )
  flags.add_argument('--bandwidth', default='200mbit')
  about = 'float32 and these; none: all'
  flags.add_argument('--parts', nargs='+', default=[], help=about)
  options = flags.parse_args()
  named = ['float32', *options.parts]
  options.parts = named if options.parts else [*parts()]
  rows = emulated.means(emulated.figures(figures, options))
  result = vars(options) | {'cores': os.cpu_count(), 'rows': rows}
  title = f'{options.hosts} hosts of {options.devices}, {options.bandwidth}'
  report(options.out, result, table(rows, title))


if __name__ == '__main__':
  main()
