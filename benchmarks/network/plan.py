"""Accuracy of `selsync plan` for steps on a network.

  python -m benchmarks.network.plan --hosts=2 --bandwidths 100mbit 200mbit

Measures steps on an emulated cluster with benchmarks/network/steps.py, and
predicts them from three figures: the local step of the slowest host, measured
while all hosts compute, because every host waits for it; the bytes of the
parameters; and the latency of a message (an all-reduce of one number takes
2 (N-1) messages). Prints predicted and measured times and writes plan.json. The
limit is 15%. Needs an otherwise idle machine with a core per host.
"""

from collections.abc import Mapping
import os
from typing import Any

import numpy as np

from benchmarks import table
from benchmarks.network import steps
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


def report_accuracy(
  out: str,
  result: dict[str, Any],
  pairs: Mapping[str, tuple[float, float]],
  head: str = '',
  title: str = '',
  limit: float = LIMIT,
) -> None:
  """Reports predicted and measured figures, and the largest error.

  Args:
    out: the JSON file to write.
    result: content of the JSON file, without the largest error.
    pairs: the predicted and the measured figure, by name.
    head: what the names, or the figures, are.
    title: a line above the table.
    limit: the largest error that is allowed.
  """
  off = {name: guess / found - 1 for name, (guess, found) in pairs.items()}
  worst = max(map(abs, off.values()))
  rows = [
    [name, f'{guess:.2f}', f'{found:.2f}', f'{off[name]:+.1%}']
    for name, (guess, found) in pairs.items()
  ]
  table.report(
    out,
    result | {'worst': worst},
    table.Table((head, 'predicted', 'measured', 'off'), rows, title),
    notes=[f'off by {worst:.1%} at most; the limit is {limit:.0%}'],
  )


def main() -> None:
  parser = table.parser(
    __doc__, 'plan.json', hosts=2, width=96, steps=8, rounds=9
  )
  parser.add_argument('--bandwidths', nargs='+', default=['100mbit', '200mbit'])
  options = parser.parse_args()
  result, pairs = {}, {}
  for bandwidth in options.bandwidths:
    measured = steps.measure(options, bandwidth)
    predicted = predict(measured, options.hosts, bandwidth)
    result[bandwidth] = {'measured': measured, 'predicted': predicted}
    for name, guess in predicted.items():
      pairs[f'{bandwidth:>8}  {name}'] = guess, measured[name]
  machine = {'hosts': options.hosts, 'cores': os.cpu_count()}
  head = f'{options.hosts} hosts; milliseconds'
  report_accuracy(options.out, machine | {'milliseconds': result}, pairs, head)


if __name__ == '__main__':
  main()
