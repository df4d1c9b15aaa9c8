"""How long until BSP's accuracy, on a network ten times slower than the step?

  python -m benchmarks.time_to_accuracy --config=configs/digits.py
  python -m benchmarks.time_to_accuracy --config=configs/stdlib_gpt.py:smoke \
    --lrs=0.012,0.024 --config.eval.every_epochs=0.0135

First, `compare.py` runs every method with the same learning rates and seeds.
Each method's best rate is the one with the highest accuracy on validation,
whatever the task's own score is. These runs determine the step at which a
method reaches the target, BSP's final accuracy minus half a point.

Then the same runs, evaluated only at the end, are timed on an emulated cluster
(benchmarks/cluster.py) with one worker per host. Its bandwidth makes BSP
communicate for ten times as long as it computes. So the times exclude the
evaluations, and the first step, which compiles. The limit is BSP on an unshaped
network. Prints one table and writes one JSON file.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from benchmarks import cluster as emulated
from selsync_jax.commands import trials
from selsync_jax.report import entries
from selsync_jax.runs import history as runs_lib
from selsync_jax.runs import records
from selsync_jax.runs.trial import Trial

ROOT = pathlib.Path(__file__).parent.parent
RATIO = 10  # Of communication to computation under BSP.
PROBE = 120  # Steps to time the computation with.
HALF_A_POINT = 0.005
ACCURACY = 'validation_accuracy'
Rows = list[dict[str, Any]]


def rank(entry: entries.Entry) -> tuple[int, float]:
  """The key to choose the learning rate by; higher is better."""
  scores = entry.values('validation_accuracy').values()
  return -len(entry.diverged), statistics.fmean(scores or [-math.inf])


def compared(
  options: argparse.Namespace, fields: list[str]
) -> dict[str, list[Trial]]:
  """The finished trials of each method at its best learning rate."""
  flags = {
    'config': options.config,
    'methods': options.methods,
    'lrs': options.lrs,
    'seeds': options.seeds,
    'out': options.work / 'compare',
  }
  subprocess.run(
    [
      *(sys.executable, ROOT / 'compare.py', *fields),
      *(f'--{name}={value}' for name, value in flags.items()),
    ],
    check=True,
    stdout=subprocess.DEVNULL,
  )
  grid = trials.list_trials(
    options.config,
    fields,
    options.methods.split(','),
    [],
    [float(rate) for rate in options.lrs.split(',')],
    options.seeds,
    options.work / 'compare',
  )
  return {
    entry.label: [
      trial
      for trial in grid
      if (trial.label, trial.learning_rate)
      == (entry.label, entry.learning_rate)
    ]
    for entry in entries.choose_rates(entries.read_entries(grid), rank)
  }


def timed(
  trial: Trial,
  bandwidth: float | None,
  workdir: pathlib.Path,
  fields: tuple[str, ...] = (),
) -> Rows:
  """The rows of a trial on the emulated cluster, one worker a host.

  Args:
    trial: what to train.
    bandwidth: of each host, in bit/s; `None` does not limit it.
    workdir: of the run, which resumes if it exists.
    fields: flags that override the trial's.
  """
  flags = ['--config.mapper=pmap', '--config.eval.every_epochs=1e6', *fields]
  command = [sys.executable, ROOT / 'train.py', *trial.flags, *flags]
  emulated.run(
    trial.config.workers,
    None if bandwidth is None else f'{bandwidth:.0f}bit',
    [*map(str, command), f'--workdir={workdir}', '--noreport'],
  )
  return records.read_metrics(workdir)


def step_seconds(rows: Rows) -> float:
  """The median time of a step, without the first ones, which compile."""
  seconds = [row['seconds'] for row in rows[20:]]
  return statistics.median(
    (later - earlier) / 10
    for earlier, later in zip(seconds[:-10], seconds[10:], strict=True)
  )


def steps_to(rows: Rows, target: float) -> int | None:
  """The first evaluated step that reaches the target accuracy."""
  return next(
    (row['step'] for row in rows if row.get(ACCURACY, -math.inf) >= target),
    None,
  )


def network(
  options: argparse.Namespace, fields: list[str], bsp: Trial
) -> dict[str, float]:
  """A step's computing time, and the bandwidth that makes BSP ten times it."""
  (local,) = trials.list_trials(
    options.config,
    fields,
    ['local_sgd+sync.period=1000000'],
    [],
    [],
    1,
    options.work / 'local',
  )
  rows = timed(local, None, local.workdir, (f'--config.steps={PROBE}',))
  seconds = step_seconds(rows)
  outcome = runs_lib.read(bsp.workdir).outcome
  bits = 8 * outcome['bytes_per_worker_bsp'] / outcome['steps']
  return {'step_seconds': seconds, 'bits_per_second': bits / (RATIO * seconds)}


def row_of(
  found: list[Trial],
  target: float,
  bandwidth: float | None,
  work: pathlib.Path,
) -> dict[str, Any]:
  """A method's steps and seconds to the target, one figure per seed."""
  out: dict[str, Any] = {'rate': found[0].learning_rate}
  out |= {'steps': [], 'seconds': [], 'final': [], 'lssr': []}
  for trial in found:
    run = runs_lib.read(trial.workdir)
    steps = steps_to(run.rows, target)
    name = f'{trial.workdir.parent.name}-seed{trial.seed}'
    rows = timed(trial, bandwidth, work / name)
    out['steps'].append(steps)
    seconds = steps and rows[steps - 1]['seconds'] - rows[0]['seconds']
    out['seconds'].append(seconds)
    out['final'].append(rows[-1][ACCURACY])
    out['lssr'].append(rows[-1]['lssr'])
  return out


def median(values: list[float | None]) -> float | None:
  """The median over seeds; one that misses the target counts as infinite."""
  middle = statistics.median(math.inf if v is None else v for v in values)
  return middle if math.isfinite(middle) else None


def show(result: dict[str, Any]) -> None:
  """Prints the table."""
  bsp = median(result['rows']['bsp']['seconds'])
  print(
    f"{result['config']}: BSP's validation accuracy to reach: "
    f'{result["target"]:.4f}; {result["bits_per_second"] / 1e6:.1f} Mbit/s, '
    f'a step computes {1e3 * result["step_seconds"]:.1f} ms'
  )
  width = max(map(len, result['rows']))
  head = '  rate   LSSR  final   steps  seconds  times faster than BSP'
  print(f'{"":{width}} {head}')
  for name, row in result['rows'].items():
    steps, seconds = median(row['steps']), median(row['seconds'])
    faster = seconds and bsp and bsp / seconds
    print(
      f'{name:{width}} {row["rate"]:6g} {statistics.fmean(row["lssr"]):6.3f} '
      f'{statistics.fmean(row["final"]):6.4f} '
      f'{"never" if steps is None else f"{steps:.0f}":>7} '
      f'{"never" if seconds is None else f"{seconds:.1f}":>8} '
      f'{"" if not faster else f"{faster:.2f}":>8}'
    )


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--config', default='configs/digits.py')
  parser.add_argument('--methods', default='bsp,local_sgd,fedavg,selsync')
  parser.add_argument('--lrs', default='0.05,0.1,0.2')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument(
    '--work',
    type=pathlib.Path,
    default='runs/time_to_accuracy',
    help='folder of the runs; finished runs are not repeated',
  )
  parser.add_argument('--out', default='time_to_accuracy.json')
  options, fields = parser.parse_known_args()
  if reason := emulated.missing():
    sys.exit(f'time_to_accuracy.py: {reason}')
  options.work = options.work.resolve()
  chosen = compared(options, fields)
  bsp = chosen['bsp']
  outcomes = [runs_lib.read(trial.workdir).outcome for trial in bsp]
  target = statistics.fmean(o[ACCURACY] for o in outcomes) - HALF_A_POINT
  wire = network(options, fields, bsp[0])
  speed, rows = wire['bits_per_second'], {}
  for label, found in chosen.items():
    work = options.work / 'slow'
    rows[label] = row_of(found, target, speed, work)
  fast = options.work / 'fast'
  rows['limit: bsp, network unshaped'] = row_of(bsp, target, None, fast)
  result = {
    'config': options.config,
    'cores': os.cpu_count(),
    'target': target,
    **wire,
    'rows': rows,
  }
  show(result)
  pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + '\n')


if __name__ == '__main__':
  main()
