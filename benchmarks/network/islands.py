"""Cost of averages of islands, waited for and in the background.

  python -m benchmarks.network.islands --islands=4 --ratio=10
  XLA_PYTHON_CLIENT_MEM_FRACTION=0.3 python -m benchmarks.network.islands \
    --islands=2 --workload='decoder 124M'

Starts islands as processes of this machine. A step either leaves the CPU idle
for some milliseconds, like a step on a GPU, and then changes the parameters; or
it trains a `--workload`, on a device that the islands share. One process first
takes steps alone, and copies the parameters to the host and back. An island's
send rate is limited so that an average in float32 takes `--ratio` of these
steps. Times three cases: no synchronization; an average every `--period` steps
that the step waits for; and the same average in the background, delayed by
`--period` - 1. Prints the milliseconds of a step, and their ratio to steps that
send nothing, which is the limit. Writes islands.json.
"""

import argparse
from collections.abc import Callable, Mapping
from concurrent import futures
import functools
import multiprocessing
import os
import statistics
import time
from typing import Any

from benchmarks.table import parser, report, Table

Work = tuple[Any, Callable[[Any], tuple[Any, Any]]]
"""Parameters, and a step that returns new ones and the gradients."""


def idle_work(options: argparse.Namespace) -> Work:
  """Steps that leave the CPU idle for some milliseconds."""
  import jax
  import jax.numpy as jnp

  shrink = jax.jit(lambda params: (0.999 * params + 0.001, params))

  def idle(params):
    time.sleep(options.step / 1e3)
    return jax.block_until_ready(shrink(params))

  return jnp.zeros(options.size), idle


def work_of(options: argparse.Namespace) -> Work:
  """The steps of a workload, or idle ones."""
  import jax

  if not options.workload:
    return idle_work(options)
  from benchmarks.speed import accelerator_rows
  from tests.support.workloads import WORKLOADS

  workload = WORKLOADS[options.workload]
  if options.tiny:
    workload = workload.tiny()
  params, loss, batch, _ = accelerator_rows.problem_of(
    workload, 'bfloat16', options.batch
  )
  batch = jax.device_put(batch)

  @jax.jit
  def descend(params, batch):
    grads = jax.grad(loss)(params, batch)
    return jax.tree.map(lambda x, g: x - 1e-6 * g, params, grads), grads

  return jax.device_put(params), lambda params: descend(params, batch)


def round_of(
  step: Callable[[Any], Any], state: Any, count: int
) -> tuple[Any, float]:
  """A state after some steps, and the milliseconds of each."""
  import jax

  start = time.perf_counter()
  for _ in range(count):
    state = step(state)
  jax.block_until_ready(state)
  return state, 1e3 * (time.perf_counter() - start) / count


def alone(options: argparse.Namespace) -> dict[str, float]:
  """Milliseconds of a step, and of copies, in a process without islands."""
  import jax

  params, step = work_of(options)
  size = sum(x.size for x in jax.tree.leaves(params))
  found: dict[str, list[float]] = {'step': [], 'to host': [], 'to device': []}
  for index in range(options.rounds + 1):
    params, each = round_of(lambda x: step(x)[0], params, options.period)
    host, there = round_of(jax.device_get, params, 1)
    params, back = round_of(jax.device_put, host, 1)
    if index:  # The first one compiles.
      for name, ms in zip(found, (each, there, back), strict=True):
        found[name].append(ms)
  return {'size': size} | {n: statistics.median(ms) for n, ms in found.items()}


def times(
  strategies: Mapping[str, Any],
  work: Work,
  name: str,
  invitation: str,
  options: argparse.Namespace,
) -> dict[str, float]:
  """Milliseconds of a step of each strategy, on this island."""
  import jax

  import selsync_jax as ss

  (params, step), found = work, {}
  for way, strategy in strategies.items():
    island = ss.Island.join(
      invitation, name, params, strategy, limit=options.limit
    )
    rounds, new = [], params
    for _ in range(options.rounds + 2):
      new, ms = round_of(
        lambda x, island=island: island.after_step(*step(x)),
        new,
        options.period,
      )
      rounds.append(ms)
    # The first round compiles the step, the second applying its average.
    found[way] = statistics.median(rounds[2:])
    jax.block_until_ready(island.leave(new))
  return found


def one_mean(
  name: str, invitation: str, options: argparse.Namespace
) -> dict[str, float]:
  """Milliseconds of a step on this island, by kind of average."""
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
  return times(strategies, work_of(options), name, invitation, options)


def slowest(options: argparse.Namespace) -> dict[str, float]:
  """The longest times on islands, each a process of this machine."""
  from selsync_jax.islands.server import CoordinatorServer

  count, context = options.islands, multiprocessing.get_context('spawn')
  with (
    CoordinatorServer(count) as point,
    futures.ProcessPoolExecutor(count, mp_context=context) as pool,
  ):
    on_island = functools.partial(
      one_mean, invitation=str(point.invitation), options=options
    )
    each = list(pool.map(on_island, [f'island {i}' for i in range(count)]))
  return {name: max(found[name] for found in each) for name in each[0]}


def main() -> None:
  flags = parser(
    __doc__, 'islands.json', islands=4, period=20, size=1_310_720, rounds=5
  )
  add, about = flags.add_argument, 'steps that an average of float32 takes'
  add('--ratio', type=float, default=10, help=about)
  add('--step', type=float, default=20, help='milliseconds')
  add('--workload', help='workload in place of --step and --size')
  add('--batch', type=int, default=8, help='batch size of the workload')
  add('--tiny', action='store_true', help='a small model, for a CPU')
  add('--wire', default='float32')
  options = flags.parse_args()
  workers = options.islands
  context = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(1, mp_context=context) as pool:
    one = pool.submit(alone, options).result()
  nbytes = 2 * (workers - 1) / workers * 4 * one['size']
  options.limit = nbytes / (options.ratio * one['step'] / 1e3)
  found = slowest(options)
  limit = found['nothing sent']
  rows = [
    [way, f'{ms:.2f}', f'{ms / limit:.3f}']
    for way, ms in {'alone': one['step'], **found}.items()
  ]
  title = (
    f'{workers} islands, {one["size"] / 1e6:.2f} M {options.wire}, an average '
    f'every {options.period} steps, {8 * options.limit / 1e6:.0f} Mbit/s'
  )
  copies = (
    f'the parameters to the host: {one["to host"]:.2f} ms; '
    f'back: {one["to device"]:.2f} ms'
  )
  result = vars(options) | {'cores': os.cpu_count(), 'milliseconds': found}
  result |= {'alone': one}
  table = Table(['', 'ms a step', 'ratio'], rows, title)
  report(options.out, result, table, notes=[copies])


if __name__ == '__main__':
  main()
