"""How long until BSP's accuracy, on a network ten times slower than the step?

  python -m benchmarks.quality.time_to_accuracy
  python -m benchmarks.quality.time_to_accuracy \
    --config=configs/stdlib_gpt.py:smoke --rates=0.006,0.012,0.024

Everything is chosen by the validation split, with five seeds: the learning rate
of BSP, of SelSync and of local SGD, and local SGD's period. The target of a
seed is BSP's final accuracy with this seed, at BSP's most accurate rate, minus
half a point. Each method, BSP included, then gets a setting from a grid around
that rate: the setting that reaches the targets of the most seeds, and among
equals the setting with the least median time. If the setting lies at the edge
of the grid, the grid grows; if it has grown too often, the command ends without
a result (benchmarks/quality/tuning.py).

Three other seeds are then timed at these settings on an emulated cluster
(benchmarks/network/cluster.py) with one worker per host. Its bandwidth makes
BSP communicate for ten times as long as it computes. The times exclude
evaluations, and the first step, which compiles. If a run reaches the target at
a step without an average, the time of an average is added, because the
evaluated parameters are the mean over workers. The limit is BSP on an unlimited
network.

Prints one table, and a sentence for the README; writes one JSON file.
"""

import argparse
from collections.abc import Sequence
import math
import os
import pathlib
import statistics
import sys
from typing import Any

from benchmarks.network import cluster as emulated
from benchmarks.quality import shaped, tuning
from benchmarks.quality.tuning import RATIO
from benchmarks.table import report, Table
from selsync_jax.commands import trials
from selsync_jax.runs.history import Trial

RATE, PERIOD = 'optimizer.learning_rate', 'sync.period'
HALF_A_POINT = 0.005
FAST = 'BSP, network unshaped'


def trial(
  options: argparse.Namespace, method: str, seed: int, fields: dict[str, float]
) -> Trial:
  """A run of a method with some fields, by dotted names."""
  own = [f'{name}={value}' for name, value in fields.items() if name != RATE]
  (found,) = trials.list_trials(
    options.config,
    [
      *options.fields,
      *(f'--config.seed={seed}', '--config.data.backend=numpy'),
      f'--config.eval.every_epochs={options.every}',
    ],
    ['+'.join([method, *own])],
    options.work,
    learning_rates=[lambda _: fields[RATE]],
  )
  return found


def choose(
  options: argparse.Namespace, steps: int
) -> tuple[float, dict[str, tuple[str, dict[str, float]]]]:
  """BSP's most accurate rate, and each method with its chosen fields.

  Args:
    options: options of the command line.
    steps: steps of a run; longer periods have the same effect as this one.
  """
  rates, periods = {RATE: options.rates}, {PERIOD: options.periods}
  bounds = {PERIOD: (1, steps)}
  endless = [math.inf] * len(options.tuned_on)

  def outcomes(method, axes, points, targets):
    runs = [
      trial(options, method, seed, dict(zip(axes, point, strict=True)))
      for point in points
      for seed in options.tuned_on
    ]
    each, n = tuning.train(runs, targets * len(points)), len(options.tuned_on)
    return [each[i : i + n] for i in range(0, len(each), n)]

  def inaccuracy(points):
    found = outcomes('bsp', rates, points, endless)
    return [-statistics.fmean(o.final for o in each) for each in found]

  (rate,), _ = tuning.grow(rates, inaccuracy, {})
  targets = targets_of(options, rate, options.tuned_on)
  chosen = {}
  rates = {RATE: [rate / 2, rate, 2 * rate]}
  for name, method, axes, stop in (
    ('BSP', 'bsp', rates, endless),  # The runs above.
    ('SelSync', 'selsync', rates, targets),
    ('local SGD', 'local_sgd', rates | periods, targets),
  ):

    def times(points, method=method, axes=axes, stop=stop):
      found = outcomes(method, axes, points, stop)
      return [tuning.preference(each, targets) for each in found]

    point, _ = tuning.grow(axes, times, bounds)
    chosen[name] = method, dict(zip(axes, point, strict=True))
    print(f'{name}: {chosen[name][1]}', flush=True)
  return rate, chosen


def targets_of(
  options: argparse.Namespace, rate: float, seeds: Sequence[int]
) -> list[float]:
  """Each seed's target: BSP's accuracy at a rate, minus a margin."""
  runs = [trial(options, 'bsp', seed, {RATE: rate}) for seed in seeds]
  outcomes = tuning.train(runs, [math.inf] * len(runs))
  return [outcome.final - HALF_A_POINT for outcome in outcomes]


def measure(
  runs: Sequence[Trial],
  steps: Sequence[int | None],
  wire: dict[str, float],
  work: pathlib.Path,
  *,
  is_shaped: bool = True,
) -> list[float | None]:
  """Seconds until a step, for each seed; `None` where there is no such step."""
  found: list[float | None] = []
  for run, step in zip(runs, steps, strict=True):
    if step is None:
      found.append(None)
      continue
    speed = wire['bits_per_second'] if is_shaped else None
    name = f'{run.workdir.parent.name}-{run.workdir.name}'
    rows = shaped.timed(run, speed, work / name)
    added = 0 if rows[step - 1]['synced'] else RATIO * wire['step_seconds']
    found.append(rows[step - 1]['seconds'] - rows[0]['seconds'] + added)
  return found


def faster(
  bsp: Sequence[float | None], other: Sequence[float | None]
) -> list[float]:
  """Speed-up over BSP, for each seed; 0 if the method misses the target.

  Raises:
    RuntimeError: if BSP misses the target, so nothing can be compared.
  """
  if None in bsp:
    raise RuntimeError('BSP misses its own target with one of the seeds')
  return [
    0.0 if seconds is None else reference / seconds
    for reference, seconds in zip(bsp, other, strict=True)
  ]


def sentence(result: dict[str, Any]) -> str:
  """The result in one sentence."""
  rows = result['rows']
  times = {name: faster(rows['BSP'], rows[name]) for name in rows}

  def text(name):
    low, high = min(times[name]), max(times[name])
    middle = statistics.median(times[name])
    if missed := times[name].count(0.0):
      seeds = f'with {missed} of {len(times[name])} seeds never'
      return f'{middle:.1f} times (up to {high:.1f}, {seeds})'
    return f'{middle:.1f} times ({low:.1f} to {high:.1f})'

  period = result['chosen']['local SGD'][1][PERIOD]
  return (
    f'Where BSP communicates for {RATIO} times as long as it computes, SelSync '
    f"reaches BSP's accuracy {text('SelSync')} sooner, local SGD with its best "
    f'period, {period}, {text("local SGD")} sooner, and BSP itself on a '
    f'network without a limit {text(FAST)}: medians and ranges over '
    f'{len(rows["BSP"])} seeds, each method at the learning rate that is '
    f'fastest on validation with {len(result["tuned_on"])} others.'
  )


def table(result: dict[str, Any]) -> Table:
  """The rows of the result as a table to print."""
  rows = []
  for name, seconds in result['rows'].items():
    fields = result['chosen'][name.split(',')[0]][1]
    period = fields.get(PERIOD, '')
    each = ['never' if s is None else f'{s:.2f}' for s in seconds]
    rate = f'{fields[RATE]:g}'
    rows.append([name, rate, f'{period}', '  '.join(each)])
  title = (
    f'{result["config"]}: validation accuracy to reach, each seed: '
    f'{", ".join(f"{t:.4f}" for t in result["targets"])}; '
    f'{result["bits_per_second"] / 1e6:.1f} Mbit/s, '
    f'a step computes {1e3 * result["step_seconds"]:.1f} ms'
  )
  head = ('', 'rate', 'period', 'seconds to the target, each seed')
  return Table(head, rows, title)


def parse() -> argparse.Namespace:

  def numbers(kind):
    return lambda text: [kind(x) for x in text.split(',')]

  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--config', default='configs/digits.py')
  parser.add_argument('--rates', type=numbers(float), default='0.1,0.2,0.4')
  parser.add_argument('--periods', type=numbers(int), default='16,32,64')
  parser.add_argument('--tuned-on', type=numbers(int), default='0,1,2,3,4')
  parser.add_argument('--seeds', type=numbers(int), default='20,21,22')
  parser.add_argument('--every', type=float, default=0.5, help='epochs')
  parser.add_argument(
    '--work',
    type=pathlib.Path,
    default='runs/time_to_accuracy',
    help='folder of the runs; finished runs are not repeated',
  )
  parser.add_argument('--out', default='time_to_accuracy.json')
  options, options.fields = parser.parse_known_args()
  if set(options.tuned_on) & set(options.seeds):
    parser.error('--seeds must not be among --tuned-on')
  return options


def main() -> None:
  """Chooses settings, measures, and prints."""
  options = parse()
  if reason := emulated.missing():
    sys.exit(f'time_to_accuracy.py: {reason}')
  work = options.work = options.work.resolve()
  cache = str(work / 'compiled')
  os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', cache)
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
  from selsync_jax.training.problem import create_problem
  from selsync_jax.training.settings import check

  first = trial(options, 'bsp', options.seeds[0], {RATE: options.rates[0]})
  rate, chosen = choose(options, create_problem(check(first.config)).steps)
  targets = targets_of(options, rate, options.seeds)
  wire = shaped.network(first, work / 'compute')
  rows = {}
  for name, (method, fields) in chosen.items():
    runs = [trial(options, method, seed, fields) for seed in options.seeds]
    outcomes = tuning.train(runs, targets)
    steps = [o.reached(t) for o, t in zip(outcomes, targets, strict=True)]
    rows[name] = measure(runs, steps, wire, work / 'shaped')
    if method == 'bsp':
      unshaped = work / 'unshaped'
      rows[FAST] = measure(runs, steps, wire, unshaped, is_shaped=False)
  result = {
    'config': options.config,
    'cores': os.cpu_count(),
    'tuned_on': options.tuned_on,
    'seeds': options.seeds,
    'targets': targets,
    'chosen': chosen,
    **wire,
    'rows': rows,
  }
  report(options.out, result, table(result), notes=[sentence(result)])


if __name__ == '__main__':
  try:
    main()
  except RuntimeError as error:
    sys.exit(f'time_to_accuracy.py: no result: {error}')
