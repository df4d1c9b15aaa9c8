"""A table for spreadsheets and data frames, `WORKDIR/metrics.csv`."""

from collections.abc import Iterable, Mapping
import csv
import io
import math
import pathlib
from typing import Any

from selsync_jax.runs import files
from selsync_jax.runs import records

_NAME = 'metrics.csv'


class CsvFile:
  """The numbers of `metrics.jsonl`, except those per worker, as a table.

  A session starts with what `metrics.jsonl` has, so it does not matter how the
  last one ended, or whether it wrote this file. A column that appears later,
  such as a score, is added at the right, and is empty in the rows above.
  """

  def __init__(
    self, workdir: pathlib.Path, step: int, config: Mapping[str, Any]
  ):
    del config
    self._path = workdir / _NAME
    every = records.read_metrics(workdir)
    rows = [_cells(row) for row in every if row['step'] <= step]
    self._columns = list(dict.fromkeys(name for row in rows for name in row))
    self._start(rows)

  def _start(self, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the file by one that has these rows."""
    text = io.StringIO()
    writer = self._writer_to(text)
    if self._columns:
      writer.writeheader()
    writer.writerows(rows)
    files.write(self._path, text.getvalue())
    self._file = self._path.open('a', encoding='utf-8', newline='')
    self._writer = self._writer_to(self._file)

  def _writer_to(self, file: Any) -> csv.DictWriter:
    return csv.DictWriter(file, self._columns, lineterminator='\n')

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step."""
    cells = _cells(row)
    if added := [name for name in cells if name not in self._columns]:
      self._file.close()
      with self._path.open(encoding='utf-8', newline='') as file:
        rows = list(csv.DictReader(file))
      self._columns += added
      self._start(rows)
    self._writer.writerow(cells)
    self._file.flush()

  def __enter__(self) -> 'CsvFile':
    return self

  def __exit__(self, *exc: Any) -> None:
    self._file.close()


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
  """By column; empty where a number is not finite, and so null in JSON."""
  nulls = {name: '' for name, value in row.items() if value is None}
  finite = {
    name: value if math.isfinite(value) else ''
    for name, value in records.numbers(row).items()
  }
  both = nulls | finite
  return {name: both[name] for name in row if name in both}
