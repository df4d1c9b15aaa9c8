"""What hosts of several devices send on a slow network, and how long it takes.

  python -m benchmarks.hosts --hosts=2 --devices=4 --bandwidth=200mbit

Runs the average of a network's parameters on an emulated cluster
(benchmarks/cluster.py), one worker per host: with one device per host, and with
several, in each layout (workers x data x fsdp). Prints the time of each, the
bytes that a host's interface sends meanwhile, their ratio to the bytes of a
ring, 2 (N-1)/N x parameters, and the ratio of the time to that of one device.
The limits are 1.10 for bytes and 1.15 for time. Writes hosts.json.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
from typing import Any

from benchmarks import cluster as emulated
from benchmarks.network import take_own_cores
from benchmarks.wires import alone
from benchmarks.wires import sent_by_this_host


def layouts(workers: int, devices: int) -> dict[str, Any]:
  """One device per worker, and all ways to divide several, by name."""
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


def figures(
  devices: int, width: int, steps: int, rounds: int
) -> dict[str, dict[str, float]]:
  """The figures of each layout, on this host of the cluster."""
  import jax
  import numpy as np

  from benchmarks import variants
  from selsync_jax import models
  from selsync_jax.devices import processes as cluster
  from selsync_jax.sync import wires

  spec = cluster.process_spec(None, None, None)
  take_own_cores(spec.process, spec.processes)
  jax.config.update('jax_num_cpu_devices', devices)
  with cluster.join(spec, {}, 60):
    model = models.create_model('convnet', 10, num_filters=width)
    params = model.init(
      jax.random.key(0), np.zeros((1, 8, 8, 1), np.float32), train=False
    )
    tree = jax.tree.map(np.asarray, params)
    wire = wires.float32()
    runs = {
      name: alone(tree, wire.init, wire.mean, layout)
      for name, layout in layouts(spec.processes, devices).items()
    }
    seconds = variants.time_interleaved(runs, steps, rounds)
    ring = sum(c.sent(spec.processes) for c in wire.sends(tree, spec.processes))
    result = {}
    for name, run in runs.items():
      before = sent_by_this_host()
      run(steps)
      sent = (sent_by_this_host() - before) / steps
      ms = 1e3 * statistics.median(seconds[name])
      result[name] = {'ms': ms, 'sent': sent, 'ring': ring}
    cluster.wait_for_all('done')
  return result


def show(rows: dict[str, dict[str, float]]) -> None:
  """Prints the table."""
  print(f'{"":10}{"ms":>9}{"MB sent":>9}{"time":>8}{"bytes":>8}')
  first = next(iter(rows.values()))
  for name, row in rows.items():
    print(
      f'{name:10}{row["ms"]:9.1f}{row["sent"] / 1e6:9.3f}'
      f'{row["ms"] / first["ms"]:8.3f}{row["sent"] / row["ring"]:8.3f}'
    )


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--hosts', type=int, default=2)
  parser.add_argument('--devices', type=int, default=4, help='of a host')
  parser.add_argument('--bandwidth', default='200mbit')
  # 1.35 M parameters: 5.4 MB in float32.
  parser.add_argument('--width', type=int, default=96, help='of the network')
  parser.add_argument('--steps', type=int, default=3, help='per round')
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--out', default='hosts.json')
  parser.add_argument('--inside', action='store_true', help=argparse.SUPPRESS)
  options = parser.parse_args()
  sizes = options.width, options.steps, options.rounds
  if options.inside:
    print(json.dumps(figures(options.devices, *sizes)))
    return
  if reason := emulated.missing():
    sys.exit(f'hosts.py: {reason}')
  command = [
    *(sys.executable, '-m', 'benchmarks.hosts', '--inside'),
    *(f'--devices={options.devices}', f'--width={options.width}'),
    *(f'--steps={options.steps}', f'--rounds={options.rounds}'),
  ]
  outputs = emulated.run(options.hosts, options.bandwidth, command, 900)
  hosts = [json.loads(output.splitlines()[-1]) for output in outputs]
  rows = {
    name: {f: statistics.mean(host[name][f] for host in hosts) for f in row}
    for name, row in hosts[0].items()
  }
  print(f'{options.hosts} hosts of {options.devices}, {options.bandwidth}')
  show(rows)
  result = {
    'hosts': options.hosts,
    'devices': options.devices,
    'bandwidth': options.bandwidth,
    'cores': os.cpu_count(),
    'rows': rows,
  }
  pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + '\n')


if __name__ == '__main__':
  main()
