"""Accuracy of `selsync plan` for steps on a network.

  python -m benchmarks.network.plan --hosts=2 --bandwidths 100mbit 200mbit

Measures steps on an emulated cluster with benchmarks/network/steps.py, and
predicts them from three figures: the local step of the slowest host, measured
while all hosts compute, because every host waits for it; the bytes of the
parameters; and the latency of a message (an all-reduce of one number takes
2 (N-1) messages). Prints predicted and measured times and writes plan.json. The
limit is 15%. Needs an otherwise idle machine with a core per host.
"""

import argparse
import os

import numpy as np

from benchmarks.network import steps
from benchmarks.table import report, Table
from selsync_jax import methods
from selsync_jax.configs import base
from selsync_jax.sync.network import bandwidth as bits_per_second
from selsync_jax.sync.network import Network
from selsync_jax.training import step_cost

LIMIT = 0.15
PAYLOAD = 1448 / 1514  # TCP payload per byte that tc counts.
SELSYNC = base.get_config('selsync').sync.to_dict()
# Rows of benchmarks/network/steps.py: the method's fields, and the LSSR.
ROWS = {
  'SelSync, no synchronization': (SELSYNC, 1.0),
  'SelSync, no synchronization, vote_every=8': (
    SELSYNC | dict(vote_every=8),
    1.0,
  ),
  'SelSync, synchronization': (SELSYNC, 0.0),
  'BSP': (dict(method='bsp'), 0.0),
}


def predict(
  measured: dict[str, float], hosts: int, bandwidth: str
) -> dict[str, float]:
  """Milliseconds of each row of `ROWS`.

  Args:
    measured: the result of `steps.measure`: milliseconds, and `bytes`.
    hosts: N, one worker per host.
    bandwidth: limit of a host's link, in tc(8)'s notation.
  """
  latency = measured[steps.SCALAR] / 1e3 / (2 * (hosts - 1))
  links = Network(hosts, PAYLOAD * bits_per_second(bandwidth), latency)
  params = np.empty(int(measured['bytes']) // 4, np.float32)
  shared = {'params': params, 'model_state': {}}
  context = methods.Context(steps_per_epoch=1, seed=0)
  predicted = {}
  for name, (sync, lssr) in ROWS.items():
    strategy = methods.create_strategy(context=context, **sync)
    cost = step_cost.cost(strategy, shared, links, lssr)
    predicted[name] = measured[steps.SLOWEST] + 1e3 * cost.network
  return predicted


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--hosts', type=int, default=2)
  parser.add_argument('--bandwidths', nargs='+', default=['100mbit', '200mbit'])
  parser.add_argument('--width', type=int, default=96, help='of the network')
  parser.add_argument('--steps', type=int, default=8, help='per round')
  parser.add_argument('--rounds', type=int, default=9)
  parser.add_argument('--out', default='plan.json')
  options = parser.parse_args()
  result, worst = {}, 0.0
  rows = []
  for bandwidth in options.bandwidths:
    measured = steps.measure(options, bandwidth)
    predicted = predict(measured, options.hosts, bandwidth)
    result[bandwidth] = {'measured': measured, 'predicted': predicted}
    for name, guess in predicted.items():
      off = guess / measured[name] - 1
      worst = max(worst, abs(off))
      figures = f'{guess:.2f}', f'{measured[name]:.2f}', f'{off:+.1%}'
      rows.append([f'{bandwidth:>8}  {name}', *figures])
  machine = {'hosts': options.hosts, 'cores': os.cpu_count(), 'worst': worst}
  head = f'{options.hosts} hosts; milliseconds'
  report(
    options.out,
    machine | {'milliseconds': result},
    Table((head, 'predicted', 'measured', 'off'), rows),
    notes=[f'off by {worst:.1%} at most; the limit is {LIMIT:.0%}'],
  )


if __name__ == '__main__':
  main()
