"""Seconds of finished runs on the emulated cluster, one worker per host.

  python -m benchmarks.quality.shaped RUNS --config=digits --methods=bsp,diloco

The hosts come from benchmarks/network/cluster.py. A run of 240 steps with one
seed is timed without its first 40 steps, and its step time is used for the
whole run; costs that come only later are missed. BSP's bytes take ten or a
hundred times as long as a step computes there. Times are relative to BSP on a
network without a limit.
"""

import argparse
from collections.abc import Mapping
import pathlib
import statistics
import sys
from typing import Any

from benchmarks.network import cluster as emulated
from benchmarks.table import report, Table
from selsync_jax.commands import flags, trials
from selsync_jax.runs import history, records
from selsync_jax.runs.history import Trial

ROOT = pathlib.Path(__file__).parents[2]
RATIO = 10  # Of communication to computation under BSP.
RATIOS = 10, 100
STEPS, FIRST = 240, 40  # Steps to take, and to leave out.
PROBE = 120  # Steps that time the computation.
Rows = list[dict[str, Any]]


def timed(trial: Trial, bandwidth: float | None, workdir: pathlib.Path) -> Rows:
  """The rows of a run on the emulated cluster, with one worker per host.

  Args:
    trial: the run to time; it is evaluated only at its end.
    bandwidth: the bit/s that each host can send; `None` sets no limit.
    workdir: the run's folder; an unfinished run there resumes.
  """
  command = [
    *(sys.executable, str(ROOT / 'train.py'), *trial.flags),
    *('--config.mapper=pmap', '--config.eval.every_epochs=1e6'),
    *(f'--workdir={workdir}', '--noreport'),
  ]
  shape = None if bandwidth is None else f'{bandwidth:.0f}bit'
  emulated.run(trial.config.workers, shape, command)
  return records.read_metrics(workdir)


def step_seconds(rows: Rows) -> float:
  """The median time of a step, without the first ones, which compile."""
  seconds = [row['seconds'] for row in rows[20:]]
  return statistics.median(
    (later - earlier) / 10
    for earlier, later in zip(seconds[:-10], seconds[10:], strict=True)
  )


def alone(bsp: Trial) -> list[str]:
  """The arguments of a run with BSP's own optimizer that never averages.

  A reducer would average gradients at every step, so it is left out. The method
  `bsp` is such a reducer, so it becomes local SGD; others keep their fields.
  """
  file, *fields = bsp.flags
  file = file.replace(':bsp', ':local_sgd')
  own = 'sync.reducer=None', f'sync.period={10**6}', f'steps={PROBE}'
  return [file, *fields, *(f'--config.{field}' for field in own)]


def network(bsp: Trial, workdir: pathlib.Path) -> dict[str, float]:
  """A step's computing time, and the bandwidth at which BSP takes ten times it.

  Args:
    bsp: a run of BSP, whose optimizer the step uses.
    workdir: the folder of the timed run; see `alone`.
  """
  rows = timed(bsp._replace(flags=alone(bsp)), None, workdir)
  seconds = step_seconds(rows)
  summary = records.read_summary(workdir)
  assert summary is not None  # The run has finished.
  bits = 8 * summary['bytes_per_worker_bsp'] / summary['steps']
  return {'step_seconds': seconds, 'bits_per_second': bits / (RATIO * seconds)}


def seconds(
  trial: Trial, bandwidth: float | None, folder: pathlib.Path
) -> float:
  """Estimates a finished run's seconds at a bandwidth from short runs."""
  short = trial._replace(flags=[*trial.flags, f'--config.steps={STEPS}'])
  rows = timed(short, bandwidth, folder / trial.workdir.parent.name)
  spent = rows[-1]['seconds'] - rows[FIRST - 1]['seconds']
  steps = history.read(trial.workdir).outcome['steps']
  return steps * spent / (STEPS - FIRST)


def measure(
  bsp: Trial, trials: Mapping[str, Trial], folder: pathlib.Path
) -> dict[str, dict[int, float]]:
  """Seconds by ratio, relative to BSP on a network without a limit.

  The ratio is BSP's communication time to its computation time, per step.

  Args:
    bsp: a finished run of BSP.
    trials: finished runs, by name.
    folder: folder for the short runs.
  """
  wire = network(bsp, folder / 'compute')
  fast = seconds(bsp, None, folder / 'unlimited')
  return {
    name: {
      ratio: seconds(
        trial, wire['bits_per_second'] * RATIO / ratio, folder / str(ratio)
      )
      / fast
      for ratio in RATIOS
    }
    for name, trial in trials.items()
  }


def main() -> None:
  """The command line, including the fields of the runs."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  add = parser.add_argument
  add('--config', required=True, help='config of the runs')
  about = 'methods of the runs, as for compare.py, BSP first'
  add('--methods', type=flags.names, required=True, help=about)
  about = "learning rate of the runs, or 2x for twice the config's"
  add('--lr', type=flags.rate, help=about)
  add('runs', type=pathlib.Path, help='a folder of compare.py')
  add('--out', default='shaped.json')
  options, fields = parser.parse_known_args()
  folder = options.runs.resolve()
  done = trials.list_trials(
    options.config,
    fields,
    options.methods,
    folder,
    learning_rates=[options.lr] if options.lr else [],
  )
  for trial in done:
    if not trial.is_done:
      parser.error(f'{trial.workdir} is not a finished run')
  bsp, *others = done
  times = measure(bsp, {t.label: t for t in others}, folder / 'emulated')
  head = ['method', *(f'{ratio}:1' for ratio in RATIOS)]
  rows = [[n, *(f'{t[r]:.2f}' for r in RATIOS)] for n, t in times.items()]
  report(options.out, times, Table(head, rows))


if __name__ == '__main__':
  main()
