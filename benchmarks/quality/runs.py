"""Trains the trials of a benchmark, several at a time."""

import argparse
from collections.abc import Callable, Iterable
import functools
import os
import pathlib

from benchmarks.table import page_with
from selsync_jax.commands import pool
from selsync_jax.runs.history import Trial


def parser(about: str, name: str, *marks: str) -> argparse.ArgumentParser:
  """The parser of a benchmark that trains, and writes tables into a page.

  Args:
    about: description; its first line is the help.
    name: name of the runs' folder and of the JSON file.
    *marks: names of the parts that the page must have.
  """
  parser = argparse.ArgumentParser(description=about.split('\n')[0])
  add = parser.add_argument
  add('--seeds', type=int, default=3)
  add('--jobs', type=int, default=os.cpu_count(), help='runs at a time')
  work = 'folder of the runs; finished runs are not repeated'
  add('--work', type=pathlib.Path, default=f'runs/{name}', help=work)
  add('--into', type=page_with(*marks), help='a page, in Markdown')
  add('--out', default=f'{name}.json')
  return parser


def train_all(
  trials: Iterable[Trial],
  jobs: int,
  is_enough: Callable[[Trial], bool] = lambda trial: False,
) -> None:
  """Runs the unfinished trials; a run that diverges has no summary.

  Stops a run that `is_enough`; a later call resumes it if it needs more.
  """
  quiet = [
    t._replace(flags=[*t.flags, '--noreport'])
    for t in trials
    if not is_enough(t)
  ]
  processes = pool.create_processes(jobs)
  processes.run_all(
    quiet,
    lambda trial: processes.run(trial, functools.partial(is_enough, trial)),
  )
