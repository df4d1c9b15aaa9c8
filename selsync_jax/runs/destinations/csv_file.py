"""A table for spreadsheets and data frames, `WORKDIR/metrics.csv`."""

from collections.abc import Mapping
import contextlib
import csv
import io
import math
import pathlib
from typing import Any

from selsync_jax.runs import files, records


class CsvFile(contextlib.AbstractContextManager[Any]):
  """A table of the numbers in `metrics.jsonl`, except those per worker.

  A session starts by copying `metrics.jsonl`, however the previous one ended. A
  column that appears later, such as a score, is added at the right, and is
  empty in the rows above.
  """

  def __init__(
    self, workdir: pathlib.Path, step: int, config: Mapping[str, Any]
  ):
    del config
    self._workdir = workdir
    self._start(step)

  def _start(self, step: int) -> None:
    every = records.read_metrics(self._workdir)
    rows = [_cells(row) for row in every if row['step'] <= step]
    self._columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, self._columns, lineterminator='\n')
    if self._columns:
      writer.writeheader()
    writer.writerows(rows)
    path = self._workdir / 'metrics.csv'
    files.write(path, text.getvalue())
    self._file = path.open('a', encoding='utf-8', newline='')

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step, which `metrics.jsonl` already has."""
    cells = _cells(row)
    if not cells.keys() <= self._columns.keys():
      self._file.close()
      self._start(row['step'])
      return
    writer = csv.DictWriter(self._file, self._columns, lineterminator='\n')
    writer.writerow(cells)
    self._file.flush()

  def __exit__(self, *exc: Any) -> None:
    self._file.close()


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the cells by column; empty where a number is not finite."""
  numbers = records.numbers(row)
  return {
    name: numbers[name] if math.isfinite(numbers.get(name, math.nan)) else ''
    for name, value in row.items()
    if name in numbers or value is None
  }
