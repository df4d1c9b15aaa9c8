"""The flags of a benchmark that takes steps of one workload."""

import argparse

from benchmarks import variants
from benchmarks.speed import accelerator_rows as rows
from tests.support.workloads import WORKLOADS


def parser(about: str, workload: str, out: str) -> argparse.ArgumentParser:
  """The parser of such a benchmark, with the defaults of two flags.

  Args:
    about: description; its first line is the help.
    workload: name of the default workload.
    out: default output file.
  """
  parser = argparse.ArgumentParser(description=about.split('\n')[0])
  add = parser.add_argument
  add('--workload', default=workload, choices=WORKLOADS)
  add('--batch', type=int, help="default: the workload's")
  add('--dtype', default='bfloat16')
  add('--round', type=float, default=0.5, help='seconds; or one step')
  add('--tiny', action='store_true', help='a small model, for a CPU')
  add('--out', default=out)
  return parser


def problem(options: argparse.Namespace) -> variants.Problem:
  """The settings chosen by the flags, to make variants with."""
  workload = WORKLOADS[options.workload]
  workload = workload.tiny() if options.tiny else workload
  size = options.batch or workload.examples
  return rows.problem_of(workload, options.dtype, size)
