"""Trains the trials of a benchmark, several at a time."""

import argparse
from collections.abc import Iterable
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


def train_all(trials: Iterable[Trial], jobs: int) -> None:
  """Runs the unfinished trials; a run that diverges has no summary."""
  quiet = [t._replace(flags=[*t.flags, '--noreport']) for t in trials]
  pool.create_processes(jobs).run_all(quiet)
