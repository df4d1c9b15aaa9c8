"""Traffic and time of hosts with several devices on a slow network.

  python -m benchmarks.network.hosts --hosts=2 --devices=4 --bandwidth=200mbit

Runs the average of a network's parameters on an emulated cluster
(benchmarks/network/cluster.py), one worker per host: with one device per host,
and with several, in each layout (workers x data x fsdp). Prints the time of
each, the bytes that a host's interface sends meanwhile, their ratio to a ring's
bytes, 2 (N-1)/N x parameters, and the ratio of the time to a host with one
device. The limits are 1.10 for bytes and 1.15 for time. Writes hosts.json.
"""

import argparse
import os
import statistics
from typing import Any

from benchmarks.network import cluster as emulated
from benchmarks.network.wires import alone
from benchmarks.table import report, Table


def layouts(workers: int, devices: int) -> dict[str, Any]:
  """One device per worker, and every way to divide several devices, by name."""
  from selsync_jax.devices.layout import Layout

  inside = [(1, 1)]
  if devices > 1:
    inside += [
      (devices // fsdp, fsdp)
      for fsdp in range(1, devices + 1)
      if devices % fsdp == 0
    ]
  return {
    f'{workers}x{data}x{fsdp}': Layout(workers, data, fsdp)
    for data, fsdp in inside
  }


def figures(options: argparse.Namespace) -> dict[str, dict[str, float]]:
  """The figures of each layout, on this host of the cluster."""
  import jax
  import numpy as np

  from benchmarks import variants
  from benchmarks.network import host
  from selsync_jax.sync import averagers, wires

  with host.joined(options.devices) as hosts:
    tree = jax.tree.map(np.asarray, variants.convnet(options.width).params)
    wire = wires.float32()
    runs = {
      name: alone(tree, wire.init, wire.mean, layout)
      for name, layout in layouts(hosts, options.devices).items()
    }
    seconds = variants.time_interleaved(runs, options.steps, options.rounds)
    sends = averagers.mean(wire=wire).sends(tree, hosts)
    ring = sum(c.sent(hosts) for c in sends)
    result = {}
    for name, run in runs.items():
      before = host.bytes_sent()
      run(options.steps)
      sent = (host.bytes_sent() - before) / options.steps
      ms = 1e3 * statistics.median(seconds[name])
      result[name] = {'ms': ms, 'sent': sent, 'ring': ring}
  return result


def table(rows: dict[str, dict[str, float]], title: str) -> Table:
  first = next(iter(rows.values()))
  return Table(
    ('', 'ms', 'MB sent', 'time', 'bytes'),
    [
      [
        name,
        f'{row["ms"]:.1f}',
        f'{row["sent"] / 1e6:.3f}',
        f'{row["ms"] / first["ms"]:.3f}',
        f'{row["sent"] / row["ring"]:.3f}',
      ]
      for name, row in rows.items()
    ],
    title,
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--hosts', type=int, default=2)
  parser.add_argument('--devices', type=int, default=4, help='devices per host')
  parser.add_argument('--bandwidth', default='200mbit')
  # 1.35 M parameters: 5.4 MB in float32.
  parser.add_argument('--width', type=int, default=96, help='of the network')
  parser.add_argument('--steps', type=int, default=3, help='per round')
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--out', default='hosts.json')
  options = parser.parse_args()
  rows = emulated.means(emulated.figures(figures, options))
  title = f'{options.hosts} hosts of {options.devices}, {options.bandwidth}'
  result = vars(options) | {'cores': os.cpu_count(), 'rows': rows}
  report(options.out, result, table(rows, title))


if __name__ == '__main__':
  main()
