"""Accuracy of `selsync plan` for averages that run in the background.

  python -m benchmarks.network.late

Islands train on an emulated cluster (benchmarks/network/cluster.py), one on
each host. A step leaves the CPU idle for some milliseconds, like a step on a
GPU, and then changes the parameters. Every method is timed with delays that
hide none, a part, and all of an average. Its prediction needs the milliseconds
of a step that sends nothing, the bytes of the parameters, and the bandwidth.
Prints predicted and measured milliseconds of a step, and writes late.json. The
limit is 15%. The emulation takes CPU time for every byte, which the prediction
leaves out: with a faster network, or more hosts than cores, this benchmark
would measure the emulation.
"""

import argparse
import os
from typing import Any

from benchmarks import table
from benchmarks.network import cluster as emulated
from benchmarks.network import islands
from benchmarks.network.plan import PAYLOAD, report_accuracy
from selsync_jax.sync.network import bandwidth as bits_per_second
from selsync_jax.sync.network import Network

ALONE = 'nothing sent'


def strategies(options: argparse.Namespace) -> dict[str, Any]:
  """The methods with their delays, and a method that sends nothing."""
  import optax

  import selsync_jax as ss

  period = ss.every(options.period)
  nesterov = optax.sgd(0.7, 0.9, nesterov=True)
  averagers = {
    'mean': ss.mean(),
    'mean, int8': ss.mean(wire=ss.wires.int8()),
    'outer': ss.outer(nesterov),
    'fragments of 2': ss.fragments(2),
  }
  found = {ALONE: ss.Strategy(ss.every(10**9), ss.mean())}
  for name, averager in averagers.items():
    found[name] = ss.Strategy(period, averager)
    for delay in options.delays:
      late = ss.Strategy(period, ss.delayed(averager, delay))
      found[f'{name}, delay {delay}'] = late
  return found


def predict(alone: float, options: argparse.Namespace) -> dict[str, float]:
  """Milliseconds of a step of each method.

  Args:
    alone: milliseconds of a step that sends nothing.
    options: the command line.
  """
  import jax
  import numpy as np

  from selsync_jax.training import step_cost

  params = jax.ShapeDtypeStruct((options.size,), np.float32)
  shared = {'params': params, 'model_state': {}}
  bits = PAYLOAD * bits_per_second(options.bandwidth)
  network = Network(options.hosts, bits, options.latency / 1e3)
  costs = {
    name: step_cost.cost(each, shared, network, 1.0, compute=alone / 1e3)
    for name, each in strategies(options).items()
  }
  return {name: alone + 1e3 * cost.network for name, cost in costs.items()}


def inside(options: argparse.Namespace) -> dict[str, float]:
  """Milliseconds of a step of each method, on this host of the cluster."""
  from benchmarks.network import host

  with host.invited(options) as joined:
    work = islands.idle_work(options)
    return islands.times(strategies(options), work, *joined, options)


def main() -> None:
  parser = table.parser(
    __doc__, 'late.json', hosts=2, period=20, size=1_310_720, rounds=5
  )
  add = parser.add_argument
  add('--bandwidth', default='50mbit', help="in tc(8)'s notation")
  add('--latency', type=float, default=0.1, help='milliseconds')
  add('--delays', nargs='+', type=int, default=[4, 10, 19], help='steps')
  add('--step', type=float, default=60, help='milliseconds')
  add('--limit', type=float, help='bytes per second that an island sends')
  options = parser.parse_args()
  measured = emulated.slowest(emulated.figures(inside, options))
  predicted = predict(measured[ALONE], options)
  title = (
    f'{options.hosts} hosts, {options.bandwidth}, {options.size / 1e6:.2f} M '
    f'parameters, an average every {options.period} steps; ms a step'
  )
  pairs = {name: (predicted[name], ms) for name, ms in measured.items()}
  result = vars(options) | {'cores': os.cpu_count()}
  result |= {'measured': measured, 'predicted': predicted}
  report_accuracy(options.out, result, pairs, title=title)


if __name__ == '__main__':
  main()
