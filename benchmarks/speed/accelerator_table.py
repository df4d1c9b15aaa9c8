"""The table and the JSON file of `benchmarks.speed.accelerator`."""

from collections.abc import Callable
import json
import pathlib
from typing import Any

Row = dict[str, Any]

HEAD = (
  f'{"section":9}{"":20}{"dtype":>9}{"batch":>7}{"ms":>10}{"quartiles":>18}'
  f'{"per second":>18}{"TFLOP/s":>9}{"of peak":>9}{"GB":>8}{"compiled":>10}'
)
_LABELS = ('name', 'dtype', 'batch')


def line(row: Row) -> str:
  """A row of the table."""
  cells = [f'{row["section"]:9}{row.get("part", row.get("name", "")):20}']
  cells += [f'{row.get("dtype", ""):>9}{row.get("batch", ""):>7}']
  if 'not_measured' in row:
    return f'{cells[0]}{cells[1]}  not measured: {row["not_measured"]}'
  if 'ms' in row:
    low, high = row['ms_quartiles']
    cells.append(f'{row["ms"]:10.2f}{f"{low:.2f} to {high:.2f}":>18}')
  else:
    cells.append(' ' * 28)
  cells += [
    _cell(row, 'per_second', 18, lambda x: f'{x:,.0f} {row["unit"]:6}'),
    _cell(row, 'flops_per_second', 9, lambda x: f'{x / 1e12:.2f}'),
    _cell(row, 'of_peak', 9, lambda x: f'{x:.1%}'),
    _cell(row, 'bytes', 8, lambda x: f'{x / 1e9:.2f}'),
    _cell(row, 'compiled_in', 10, lambda x: f'{x:.1f} s'),
  ]
  return ''.join(cells) + '  ' + ', '.join(_notes(row))


def _cell(row: Row, name: str, width: int, show: Callable[[float], str]) -> str:
  """Formats a figure: `-` if it is unknown, blank if it does not apply."""
  value = row.get(name, '')
  return f'{show(value) if value else "-" if value is None else "":>{width}}'


def _notes(row: Row) -> list[str]:
  notes = [
    f'{name.replace("_", " ")} {value:.3f}'
    for name, value in row.items()
    if name.startswith('of_') and isinstance(value, float)
    if name != 'of_peak'
  ]
  if 'ms_fed' in row:
    notes.append(f'{row["ms_fed"]:.2f} ms with input')
  if row.get('remat'):
    notes.append('activations computed again')
  if row['section'] == 'travel':
    where = 'only' if row['only_inside'] else 'NOT ONLY'
    notes.append(
      f'{row["parameters"]:,} parameters, {where} in the branch: '
      f'{row["elements_inside"]:,} elements there, '
      f'{row["elements_outside"]:,} outside'
    )
  return notes


class Table:
  """Prints rows as they arrive, and keeps the JSON file up to date.

  A step's row has its throughput relative to PyTorch's, if that was measured.

  Args:
    out: the JSON file.

  Attributes:
    machine: description of the measured machine.
  """

  def __init__(self, out: pathlib.Path):
    self._out, self._rows = out, []
    self.machine: Row = {}
    print(HEAD)

  def add(self, row: Row) -> None:
    """Adds a row."""
    theirs = [other for other in self._rows if _is_pair(other, row)]
    if theirs:
      row = row | {'of_torch': theirs[0]['ms'] / row['ms']}
    self._rows.append(row)
    print(line(row), flush=True)
    self.save()

  def save(self) -> None:
    """Writes the file."""
    result = {'machine': self.machine, 'rows': self._rows}
    self._out.write_text(json.dumps(result, indent=2) + '\n')


def _is_pair(torch: Row, ours: Row) -> bool:
  """Whether two rows measure the same step, in PyTorch and here."""
  return (
    (torch['section'], ours['section']) == ('torch', 'steps')
    and 'ms' in torch
    and 'ms' in ours
    and torch['device'] == ours['device']
    and all(torch[label] == ours[label] for label in _LABELS)
  )
