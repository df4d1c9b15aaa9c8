"""What averages cost islands: before a step goes on, and behind the steps.

  python -m benchmarks.network.islands --islands=4 --ratio=10

Starts islands as processes of this machine. A step leaves the CPU idle for some
milliseconds, as a step on a GPU does, and then changes the parameters. An
island sends at a pace at which an average of float32 takes `--ratio` steps. It
is timed without synchronization; with an average every `--period` steps, before
the step goes on; and with the same average behind the steps, delayed by
`--period` - 1. Prints the milliseconds of a step, and their ratio to steps that
send nothing, which is the limit. Writes islands.json.
"""

import argparse
from collections.abc import Mapping
from concurrent import futures
import functools
import multiprocessing
import os
import statistics
import time
from typing import Any

from benchmarks.table import report
from benchmarks.table import Table


def times(
  strategies: Mapping[str, Any],
  name: str,
  invitation: str,
  options: argparse.Namespace,
) -> dict[str, float]:
  """Milliseconds of a step of each strategy, on this island."""
  import jax
  import jax.numpy as jnp

  import selsync_jax as ss

  params, period = jnp.zeros(options.size), options.period
  update = jax.jit(lambda params: (0.999 * params + 0.001, params))
  found = {}
  for way, strategy in strategies.items():
    island = ss.Island.join(
      invitation, name, params, strategy, pace=options.pace
    )
    rounds, new = [], params
    for index in range(options.rounds + 1):
      start = time.perf_counter()
      for _ in range(period):
        time.sleep(options.step / 1e3)
        new, grads = update(new)
        new = jax.block_until_ready(island.after_step(new, grads))
      if index:  # The first one compiles.
        rounds.append((time.perf_counter() - start) / period)
    found[way] = 1e3 * statistics.median(rounds)
    jax.block_until_ready(island.leave(new))
  return found


def one_mean(
  name: str, invitation: str, options: argparse.Namespace
) -> dict[str, float]:
  """Milliseconds of a step on this island, by way of averaging."""
  import selsync_jax as ss

  wire = getattr(ss.wires, options.wire)()
  mean, period = ss.mean(wire=wire), options.period
  strategies = {
    'nothing sent': ss.Strategy(ss.every(10**9), mean),
    'before the step': ss.Strategy(ss.every(period), mean),
    'behind the steps': ss.Strategy(
      ss.every(period), ss.delayed(mean, period - 1)
    ),
  }
  return times(strategies, name, invitation, options)


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--islands', type=int, default=4)
  about = 'steps that an average of float32 takes'
  parser.add_argument('--ratio', type=float, default=10, help=about)
  parser.add_argument('--period', type=int, default=20)
  parser.add_argument('--step', type=float, default=20, help='milliseconds')
  parser.add_argument('--size', type=int, default=1_310_720, help='float32s')
  parser.add_argument('--wire', default='float32')
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--out', default='islands.json')
  options = parser.parse_args()
  from selsync_jax.islands.meeting import MeetingPoint

  workers = options.islands
  nbytes = 2 * (workers - 1) / workers * 4 * options.size
  options.pace = nbytes / (options.ratio * options.step / 1e3)
  context = multiprocessing.get_context('spawn')
  with (
    MeetingPoint(workers) as point,
    futures.ProcessPoolExecutor(workers, mp_context=context) as pool,
  ):
    one = functools.partial(
      one_mean, invitation=str(point.invitation), options=options
    )
    each = list(pool.map(one, [f'island {i}' for i in range(workers)]))
  slowest = {way: max(found[way] for found in each) for way in each[0]}
  limit = slowest['nothing sent']
  rows = [
    [way, f'{ms:.2f}', f'{ms / limit:.3f}'] for way, ms in slowest.items()
  ]
  title = (
    f'{workers} islands, {options.size / 1e6:.2f} M {options.wire}, an average '
    f'every {options.period} steps, {8 * options.pace / 1e6:.0f} Mbit/s'
  )
  result = vars(options) | {'cores': os.cpu_count(), 'milliseconds': slowest}
  report(options.out, result, Table(['', 'ms a step', 'ratio'], rows, title))


if __name__ == '__main__':
  main()
