"""Seconds of runs on an emulated cluster, from their first steps.

A run of 240 steps is timed, with one seed, but for its first 40, and the time
of a step counts for the whole run. What a method does only later is not in it.

Each worker has a host (benchmarks/network/cluster.py). The bytes of BSP take
ten or a hundred times as long as a step computes there.
"""

import argparse
from collections.abc import Mapping, Sequence
import pathlib

from benchmarks.quality import time_to_accuracy
from benchmarks.quality.tuning import RATIO
from benchmarks.quality.tuning import Setting
from selsync_jax.runs import history
from selsync_jax.runs.history import Trial

RATIOS = 10, 100
STEPS, FIRST = 240, 40  # That are taken, and of these that do not count.


def seconds(
  trial: Trial, bandwidth: float | None, folder: pathlib.Path
) -> float:
  """Seconds of a finished run on hosts with so many bit/s, from short ones."""
  file, *fields = trial.flags
  fields.append(f'--config.steps={STEPS}')
  run = Setting(file.removeprefix('--config='), tuple(fields))
  workdir = folder / trial.workdir.parent.name
  rows = time_to_accuracy.timed(run, bandwidth, workdir)
  spent = rows[-1]['seconds'] - rows[FIRST - 1]['seconds']
  steps = history.read(trial.workdir).outcome['steps']
  return steps * spent / (STEPS - FIRST)


def measure(
  config: str,
  fields: Sequence[str],
  bsp: Trial,
  trials: Mapping[str, Trial],
  folder: pathlib.Path,
) -> dict[str, dict[int, float]]:
  """Seconds by ratio, relative to those of BSP on a network without a limit.

  Args:
    config: the name of a config, with its variant.
    fields: arguments that change it for all runs.
    bsp: a finished run of BSP.
    trials: finished runs, by name.
    folder: of the short runs.
  """
  options = argparse.Namespace(config=config, fields=fields, seeds=[bsp.seed])
  wire = time_to_accuracy.network(options, folder / 'compute')
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
