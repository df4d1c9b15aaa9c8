"""Accuracy of `selsync plan` with a measured network, over a grid.

  python -m benchmarks.network.grid

Islands train on an emulated cluster (benchmarks/network/cluster.py), one on
each host. A step leaves the CPU idle for some milliseconds, like a step on a
GPU, and then changes the parameters. Every wire is timed at every period and
bandwidth, with averages that the step waits for and with averages that travel
during half of the steps until the next one. The prediction needs the number of
parameters, the milliseconds of a step that sends nothing, and what `selsync
plan --probe` measures: the links, and the computation of an average. Prints
predicted and measured milliseconds of a step, and writes grid.json. The limit
is 10%. The emulation takes CPU time for every byte, which the prediction leaves
out: with a faster network, or more hosts than cores, this benchmark would
measure the emulation.
"""

import argparse
import os
import time
from typing import Any

from benchmarks import table
from benchmarks.network import cluster as emulated
from benchmarks.network import islands
from benchmarks.network.plan import report_accuracy

ALONE = 'nothing sent'
LIMIT = 0.10


def strategies(options: argparse.Namespace) -> dict[str, tuple[Any, int]]:
  """The strategies with their periods, by name."""
  import selsync_jax as ss

  found = {ALONE: (ss.Strategy(ss.every(10**9), ss.mean()), 1)}
  for period in options.periods:
    for wire in options.wires:
      mean, name = ss.mean(wire=getattr(ss.wires, wire)()), f'{period:3} {wire}'
      delay = max(1, period // 2)
      late = f'{name}, delay {delay}', ss.delayed(mean, delay)
      for way, averager in ((name, mean), late):
        strategy = ss.Strategy(ss.every(period), averager)
        found[way] = strategy, period
  return found


def predict(
  alone: float,
  links: list[float],
  work: dict[str, float],
  options: argparse.Namespace,
) -> dict[str, float]:
  """Milliseconds of a step of each strategy.

  Args:
    alone: milliseconds of a step that sends nothing.
    links: the measured bandwidth and latency.
    work: seconds in which an island computes an average, by strategy.
    options: the command line.
  """
  import jax
  import numpy as np

  from selsync_jax.islands.probing import IslandNetwork
  from selsync_jax.training import step_cost

  params = jax.ShapeDtypeStruct((options.size,), np.float32)
  shared = {'params': params, 'model_state': {}}
  network = IslandNetwork(options.hosts, *links)
  costs = {
    name: step_cost.cost(
      each, shared, network, 1.0, compute=alone / 1e3, work=work[name]
    )
    for name, (each, _) in strategies(options).items()
  }
  return {name: alone + 1e3 * cost.network for name, cost in costs.items()}


def inside(options: argparse.Namespace) -> dict[str, Any]:
  """The links, and milliseconds of each strategy, on a host of the cluster."""
  import jax.numpy as jnp

  from benchmarks.network import host
  import selsync_jax as ss
  from selsync_jax.islands import probing

  with host.invited(options) as (name, invitation):
    size, found, work = 4 * options.size, {}, {}
    links = probed(invitation, name, options)
    for way, (strategy, period) in strategies(options).items():
      work[way] = probing.work(strategy.averager, size)
      island = ss.Island.join(
        invitation, name, jnp.zeros(options.size), strategy
      )
      found[way] = timed(island, period, options)
    return {'links': links, 'work': work, 'milliseconds': found}


def timed(island: Any, period: int, options: argparse.Namespace) -> float:
  """Milliseconds of a step of an island.

  A median counts for each step of the period, because other work on this
  machine delays some steps.
  """
  import numpy as np

  params, step = islands.idle_work(options)
  rounds, pause, seconds = max(3, options.steps // period), options.step, []
  for index in range((2 + rounds) * period):
    # The first average compiles the step, the second applying its average.
    options.step = pause if index >= 2 * period else 0
    began = time.perf_counter()
    params = island.after_step(*step(params))
    seconds.append(time.perf_counter() - began)
  island.leave(params)
  each = np.reshape(seconds[2 * period :], (rounds, period))
  return 1e3 * float(np.median(each, 0).mean())


def probed(
  invitation: str, name: str, options: argparse.Namespace
) -> list[float]:
  """The bandwidth and latency of the worst link, each the median of three."""
  import numpy as np

  from selsync_jax.islands import probing

  each = [probing.probe(invitation, name, 4 * options.size) for _ in range(3)]
  links = [probe.network(options.hosts)[1:] for probe in each]
  return np.median(links, 0).tolist()


def main() -> None:
  parser = table.parser(__doc__, 'grid.json', hosts=2, size=262_144, steps=48)
  add, rates = parser.add_argument, ['10mbit', '20mbit', '40mbit', '80mbit']
  add('--bandwidths', nargs='+', default=rates, help="in tc(8)'s notation")
  add('--periods', nargs='+', type=int, default=[1, 8, 32, 128], help='steps')
  add('--wires', nargs='+', default=['float32', 'int4'])
  add('--step', type=float, default=40, help='milliseconds')
  options = parser.parse_args()
  result, pairs = vars(options) | {'cores': os.cpu_count()}, {}
  for bandwidth in options.bandwidths:
    each = emulated.figures(inside, options, bandwidth=bandwidth)
    measured = emulated.slowest([one['milliseconds'] for one in each])
    links = each[0]['links']
    work = emulated.slowest([one['work'] for one in each])
    predicted = predict(measured[ALONE], links, work, options)
    result[bandwidth] = {'links': links, 'work': work, 'measured': measured}
    result[bandwidth] |= {'predicted': predicted}
    pairs |= {
      f'{bandwidth:>8}  {name}': (predicted[name], ms)
      for name, ms in measured.items()
    }
  title = (
    f'{options.hosts} hosts, {options.size / 1e6:.2f} M parameters, periods '
    'and wires; ms a step'
  )
  report_accuracy(options.out, result, pairs, title=title, limit=LIMIT)


if __name__ == '__main__':
  main()
