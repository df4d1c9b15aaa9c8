"""Cost of simulating a worker's step, relative to lockstep training.

  python -m benchmarks.speed.simulate
  python -m benchmarks.speed.simulate --workers 8 --methods asp eager --rounds=3

Trains on the digits for some steps: in lockstep with all workers on one device
(`mapper='vmap'`), and with each asynchronous method on a virtual cluster where
every step takes its own time. Both read data, compute gradients and update; the
goal is that a simulated step costs at most 1.5 times as much. Prints the
medians per worker and step, and the ratio, and writes one JSON file.
"""

import argparse
import pathlib
import statistics
import time
from typing import Any

import jax

from benchmarks.table import report, Table
from selsync_jax.configs import digits
from selsync_jax.simulate import asynchronous
from selsync_jax.simulate.asynchronous import ASYNCHRONOUS
from selsync_jax.simulate.cluster import create_cluster, VirtualCluster
from selsync_jax.simulate.engine import Engine
from selsync_jax.simulate.numerics import Numerics
from selsync_jax.simulate.simulation import Simulation
from selsync_jax.sync.traffic import nbytes
from selsync_jax.training import start
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup, Setup

GOAL = 1.5
CLUSTER = {
  'compute': 'lognormal',
  'step_seconds': 0.1,
  'sigma': 0.3,
  'bandwidth': '1Gbit',
  'latency': '1ms',
}


def lockstep_times(setup: Setup, steps: int, rounds: int) -> Any:
  """Yields the seconds of some steps of BSP; the first ones are not counted."""
  workers = range(setup.mapper.workers)
  state = start.init(setup)
  step = setup.train_step()
  for k in range(rounds + 1):
    began = time.perf_counter()
    batches = setup.problem.data.batches(workers, k * steps, (k + 1) * steps)
    for batch in batches:
      state, metrics = step(state, batch)
    jax.block_until_ready((state, metrics))
    if k:
      yield time.perf_counter() - began


def simulated_times(
  setup: Setup,
  numerics: Numerics,
  cluster: VirtualCluster,
  method: str,
  steps: int,
  rounds: int,
) -> Any:
  """Yields the seconds of equally many gradients; the first are not counted."""
  size = nbytes(setup.problem.shapes)
  engine = Engine(
    asynchronous.create_method(method), Simulation(cluster, size, numerics)
  )
  for k in range(rounds + 1):
    began = time.perf_counter()
    uses = engine.advance((k + 1) * steps * setup.mapper.workers)
    jax.block_until_ready([use.metrics.tree for use in uses])
    jax.block_until_ready(engine.shared())
    if k:
      yield time.perf_counter() - began


def measure(
  workers: int, names: list[str], steps: int, rounds: int
) -> dict[str, float]:
  """Seconds per worker and step, by method and for `lockstep`."""
  config = digits.get_config('bsp')
  config.update(
    workers=workers, mapper='vmap', steps=steps * (rounds + 1), batch_size=16
  )
  config.data.backend = 'numpy'
  setup = create_setup(check(config))
  numerics = Numerics(setup.problem, config.optimizer.to_dict())
  cluster = create_cluster(
    CLUSTER, workers=workers, steps=setup.problem.steps, seed=0
  )
  times = {'lockstep': lockstep_times(setup, steps, rounds)}
  for name in names:
    times[name] = simulated_times(setup, numerics, cluster, name, steps, rounds)
  # In turn, so that other load on the machine slows all of them.
  turns = list(zip(*times.values(), strict=True))
  return {
    name: statistics.median(column) / (steps * workers)
    for name, column in zip(times, zip(*turns, strict=True), strict=True)
  }


def table(results: dict[str, dict[str, float]]) -> Table:
  """The results as a table to print."""
  return Table(
    ('workers', 'method', 'ms per worker and step', 'ratio'),
    [
      [workers, name, f'{1e3 * s:.2f}', f'{s / rows["lockstep"]:.2f}']
      for workers, rows in results.items()
      for name, s in rows.items()
    ],
    f'digits, {jax.devices()[0].device_kind}',
  )


def main(argv: list[str] | None = None) -> None:
  """Measures for each number of workers; prints and writes the results."""
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add('--workers', type=int, nargs='+', default=[8, 32])
  add('--methods', nargs='+', default=list(ASYNCHRONOUS))
  add('--steps', type=int, default=10, help='of each worker and round')
  add('--rounds', type=int, default=5, help='the median counts')
  add('--out', type=pathlib.Path, default='simulate.json')
  flags = parser.parse_args(argv)
  results = {
    str(workers): measure(workers, flags.methods, flags.steps, flags.rounds)
    for workers in flags.workers
  }
  worst = max(
    max(rows.values()) / rows['lockstep'] for rows in results.values()
  )
  note = f'largest ratio {worst:.2f}, goal {GOAL}'
  report(flags.out, results, table(results), notes=[note])


if __name__ == '__main__':
  main()
