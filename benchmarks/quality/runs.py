"""Trains the trials of a benchmark, and reports its tasks one by one."""

import argparse
from collections.abc import Callable, Collection, Iterable, Sequence
import os
import pathlib
import shlex
import sys
from typing import Any, NamedTuple

from benchmarks import marked
from benchmarks.table import page_with, report
from selsync_jax.commands import pool
from selsync_jax.config import ConfigError
from selsync_jax.runs.history import Trial


def parser(
  about: str, name: str, *marks: str, tasks: Collection[str] = ()
) -> argparse.ArgumentParser:
  """The parser of a benchmark that trains, and writes tables into a page.

  Args:
    about: description; its first line is the help.
    name: name of the runs' folder and of the JSON file.
    *marks: names of the parts that the page must have.
    tasks: names of the tasks, for `report_tasks`.
  """
  parser = argparse.ArgumentParser(description=about.split('\n')[0])
  add = parser.add_argument
  if tasks:
    add('--tasks', nargs='+', default=list(tasks), choices=tasks)
  add('--seeds', type=int, default=3)
  add('--jobs', type=int, default=os.cpu_count(), help='runs at a time')
  work = 'folder of the runs; finished runs are not repeated'
  add('--work', type=pathlib.Path, default=f'runs/{name}', help=work)
  add('--into', type=page_with(*marks), help='a page, in Markdown')
  add('--out', default=f'{name}.json')
  return parser


def only(names: Sequence[str], every: Sequence[str]) -> str:
  """The flag, for a caption, of a command that trains some rows of a table.

  Args:
    names: the rows that it trains.
    every: the rows that it trains without the flag.
  """
  return '' if names == every else f' --only {shlex.join(names)}'


def train_all(trials: Iterable[Trial], jobs: int) -> None:
  """Runs the unfinished trials; a run that diverges has no summary.

  Trials with the same folder, such as a method's in two families, run once.
  """
  every = {trial.workdir: trial for trial in trials}.values()
  quiet = [t._replace(flags=[*t.flags, '--noreport']) for t in every]
  pool.create_processes(jobs).run_all(quiet)


class Section(NamedTuple):
  """The result of a task.

  Attributes:
    title: the heading on the screen.
    text: the part of the page, in Markdown.
    record: the content for the JSON file.
  """

  title: str
  text: str
  record: Any


def report_tasks(
  name: str, options: argparse.Namespace, measure: Callable[[str], Section]
) -> None:
  """Measures each task, writes its part of the page, and reports all of them.

  A page without the part of a task, `<!-- NAME_TASK -->`, ends the process
  before anything is measured.

  Args:
    name: the name of the benchmark.
    options: the command line, read by `parser`.
    measure: a function of a task's name.
  """
  marks = {task: f'{name}_{task}' for task in options.tasks}
  if options.into:
    try:
      for mark in marks.values():
        marked.check(options.into, mark)
    except ConfigError as error:
      sys.exit(f'--into={error}')
  results, notes = {}, []
  for task, mark in marks.items():
    section = measure(task)
    if options.into:
      marked.insert(f'\n{section.text}\n', options.into, mark)
    results[task] = section.record
    notes.append(f'### {section.title}\n\n{section.text}')
  report(options.out, results, notes=notes)
