"""Order of the layouts of `selsync plan --hosts=H --devices=D` on a network.

  python -m benchmarks.network.layouts --hosts=4 --devices=2

Trains in every layout (workers x data x fsdp) of an emulated cluster
(benchmarks/network/cluster.py) with local SGD, and predicts the seconds of a
step from three figures, measured while all hosts do the same: a step without an
average, an all-reduce of one number, and an all-reduce of the parameters inside
every host. The network is a perceptron of digits. Prints predicted and measured
milliseconds and whether both orders are equal, and writes layouts.json.
"""

import argparse
from collections.abc import Callable
import dataclasses
import functools
import math
import os
import statistics
from typing import Any

from benchmarks import table
from benchmarks.network import cluster as emulated
from benchmarks.network.plan import PAYLOAD
from selsync_jax.sync.network import bandwidth as bits_per_second

QUIET = 'a step without an average'
SCALAR = 'all-reduce of one number'
INSIDE = 'all-reduce inside every host'


def create_setup(options: argparse.Namespace) -> Any:
  """The setup of the run: digits, a perceptron, local SGD."""
  from selsync_jax.configs import digits
  from selsync_jax.training import settings, setup
  from tests.support import perceptron

  config = digits.get_config('local_sgd')
  config.workers = options.hosts * options.devices
  config.batch_size, config.sync.period = options.examples, options.period
  config.data.backend = 'numpy'
  config.model.update(name='perceptron', num_filters=options.width)
  with perceptron.registered():
    return setup.create_setup(settings.check(config))


def runs(options: argparse.Namespace) -> dict[str, Callable[[int], None]]:
  """Functions of a number of steps: three figures, and each layout."""
  import jax
  import jax.numpy as jnp

  from benchmarks import variants
  import selsync_jax as ss
  from selsync_jax.devices.layout import Layout
  from selsync_jax.training import layouts

  setup = create_setup(options)
  never = setup.strategy._replace(trigger=ss.every(10**6))
  quiet = dataclasses.replace(setup, strategy=never)
  size = sum(x.size for x in jax.tree.leaves(setup.shapes.params))
  host = Layout(options.hosts, data=options.devices)
  add = host.map_workers(lambda x: jnp.sum(x, axis=0))
  x = placed(host, (options.hosts, options.devices, size), jnp.float32)

  def inside(steps):
    for _ in range(steps):
      jax.block_until_ready(add(x))

  possible, _ = layouts.every(cluster(options))
  alone = Layout(options.hosts * options.devices)
  return {
    QUIET: training(quiet, alone, options),
    SCALAR: variants.all_reduce_alone(options.devices, 1),
    INSIDE: inside,
    **{layouts.name(x): training(setup, x, options) for x in possible},
  }


def placed(layout: Any, shape: tuple[int, ...], dtype: Any) -> Any:
  """A batch of ones."""
  import jax
  import numpy as np

  ones = np.ones(shape, dtype)
  return jax.make_array_from_callback(
    shape, layout.batch_sharding(shape), lambda index: ones[index]
  )


def training(
  setup: Any, layout: Any, options: argparse.Namespace
) -> Callable[[int], None]:
  """Returns `run(steps)`, which trains in a layout."""
  import jax

  from selsync_jax.devices.mappers import abstract

  setup = dataclasses.replace(setup, mapper=layout)
  examples = options.examples * options.hosts * options.devices
  shapes = abstract(setup.batch(examples // layout.workers), layout.workers)
  batch = jax.tree.map(lambda x: placed(layout, x.shape, x.dtype), shapes)
  step, state = setup.train_step(), setup.initial()

  def run(steps):
    nonlocal state
    for _ in range(steps):
      state, _ = step(state, batch)
    jax.block_until_ready(state)

  return run


def figures(options: argparse.Namespace) -> dict[str, float]:
  """Seconds of a step of each of `runs`, on this host of the cluster."""
  from benchmarks import variants
  from benchmarks.network import host
  from selsync_jax.cluster import processes

  with host.joined(options.devices):
    align = functools.partial(processes.wait_for_all, 'aligned')
    seconds = variants.time_interleaved(
      runs(options), options.period, options.rounds, align
    )
  return {name: statistics.median(each) for name, each in seconds.items()}


def cluster(
  options: argparse.Namespace, inner: float = 0.0, latency: float = 0.0
) -> Any:
  """The cluster of the options, with figures of its links."""
  from selsync_jax.training import layouts

  return layouts.Cluster(
    options.hosts,
    options.devices,
    PAYLOAD * bits_per_second(options.bandwidth),
    inner,
    latency,
  )


def predict(
  measured: dict[str, float], options: argparse.Namespace
) -> dict[str, float]:
  """Seconds of a step by layout, the fastest first."""
  from selsync_jax.sync.traffic import Collective, nbytes
  from selsync_jax.training import layouts

  setup = create_setup(options)
  message = Collective('all_reduce', nbytes(setup.shapes.params))
  inner = 8 * message.sent(options.devices) / measured[INSIDE] or math.inf
  latency = measured[SCALAR] / (2 * (options.hosts * options.devices - 1))
  links = cluster(options, inner, latency)
  possible, _ = layouts.every(links)
  plans, _ = layouts.plans(setup, possible, links, 0.0, measured[QUIET])
  return {layouts.name(plan.layout): plan.step for plan in plans}


def main() -> None:
  # Width 9,000: 675,010 parameters, 2.7 MB.
  flags = table.parser(
    __doc__,
    'layouts.json',
    **dict(hosts=4, devices=2, width=9000, examples=8, period=16, rounds=5),
  )
  flags.add_argument('--bandwidth', default='100mbit')
  options = flags.parse_args()
  measured = emulated.slowest(emulated.figures(figures, options))
  predicted = predict(measured, options)
  order = sorted(predicted, key=lambda name: measured[name])
  rows = [
    [
      name,
      *(f'{1e3 * x[name]:.1f}' for x in (predicted, measured)),
      f'{1 + order.index(name)}',
    ]
    for name in predicted
  ]
  title = (
    f'{options.hosts} hosts of {options.devices}, {options.bandwidth}, '
    f'local SGD, period {options.period}; milliseconds of a step'
  )
  head = 'layout', 'predicted', 'measured', 'place'
  base = [f'{n}: {1e3 * measured[n]:.2f}' for n in (QUIET, SCALAR, INSIDE)]
  same = 'equal' if order == [*predicted] else 'not equal'
  result = vars(options) | {
    'cores': os.cpu_count(),
    'predicted': predicted,
    'measured': measured,
  }
  table.report(
    options.out,
    result,
    table.Table(head, rows, title),
    notes=['\n'.join(base), f'the orders are {same}'],
  )


if __name__ == '__main__':
  main()
