"""A benchmark's output: a table on the screen, and a JSON file."""

import argparse
from collections.abc import Callable, Iterable, Sequence
import json
import pathlib
from typing import Any, NamedTuple

from benchmarks import marked
from selsync_jax.config import ConfigError


def parser(about: str, out: str, **numbers: int) -> argparse.ArgumentParser:
  """The parser of a benchmark.

  Args:
    about: description; its first line is the help.
    out: default output file.
    **numbers: the defaults of flags for whole numbers, such as --rounds.
  """
  parser = argparse.ArgumentParser(description=about.split('\n')[0])
  for name, default in numbers.items():
    parser.add_argument(f'--{name}', type=int, default=default)
  parser.add_argument('--out', default=out)
  return parser


class Table(NamedTuple):
  """A table to print.

  Attributes:
    head: the columns' names; the first column is aligned to the left.
    rows: the cells of each row, as text.
    title: a line above the table, if it is not empty.
  """

  head: Sequence[str]
  rows: Sequence[Sequence[str]]
  title: str = ''

  def __str__(self) -> str:
    """The lines of the table."""
    lines = [[*map(str, row)] for row in (self.head, *self.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = [
      '  '.join(
        [first.ljust(widths[0])]
        + [cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True)]
      ).rstrip()
      for first, *others in lines
    ]
    return '\n'.join([self.title] * bool(self.title) + texts)


def report(
  out: str | pathlib.Path,
  result: Any,
  *tables: Table,
  notes: Sequence[str] = (),
) -> None:
  """Prints tables, and writes the measurements.

  Args:
    out: the JSON file to write.
    result: content of the JSON file.
    *tables: tables to print.
    notes: paragraphs to print below the tables.
  """
  print('\n\n'.join(map(str, [*tables, *notes])))
  pathlib.Path(out).write_text(json.dumps(result, indent=2) + '\n')


def markdown(lines: Iterable[Sequence[str]]) -> str:
  """Returns a table in Markdown; its second line has only hyphens."""
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def page_with(*names: str) -> Callable[[str], pathlib.Path]:
  """Returns the type of a flag: a page with the parts of these names."""

  def page(path):
    for name in names:
      try:
        marked.check(pathlib.Path(path), name)
      except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return pathlib.Path(path)

  return page
