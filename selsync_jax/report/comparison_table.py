"""The table of a comparison: the paper's, with several seeds.

The difference to BSP is taken seed by seed, because runs with the same seed
share initial weights and batches.
"""

from collections.abc import Sequence
import csv
import pathlib
import statistics
from typing import NamedTuple

import numpy as np
import rich.box
import rich.console
import rich.table

from selsync_jax.report import facts
from selsync_jax.report.entries import Entry
from selsync_jax.report.entries import metric_of
from selsync_jax.runs import history


class Cell(NamedTuple):
  """A value and its text; the value is `None` if the cell has no number."""

  value: float | None
  text: str


def deviation(values: Sequence[float]) -> float:
  """Returns the sample standard deviation; NaN if a value is."""
  return float(np.std(values, ddof=1))  # statistics.stdev fails for NaN.


def spread(values: Sequence[float], form: str) -> Cell:
  """Returns the mean, and the sample standard deviation of several values."""
  if not values:
    return Cell(None, '–')
  mean = statistics.fmean(values)
  text = format(mean, form)
  if len(values) > 1:
    text += f' ± {format(deviation(values), form.lstrip("+"))}'
  return Cell(mean, text)


def table(entries: Sequence[Entry]) -> dict[str, dict[str, Cell]]:
  """Returns the cells of each method, by its label and the column's name."""
  bsp = next((entry for entry in entries if entry.method == 'bsp'), None)
  metric = metric_of(entries)
  return {
    entry.label: _row(entry, bsp if bsp is not entry else None, metric)
    for entry in entries
  }


def _row(entry: Entry, bsp: Entry | None, metric: str) -> dict[str, Cell]:
  scores = entry.values(f'validation_{metric}')
  reference = bsp.values(f'validation_{metric}') if bsp else {}
  differences = [
    scores[seed] - reference[seed]
    for seed in sorted(scores.keys() & reference.keys())
  ]
  sent = entry.mean('bytes_per_worker')
  seeds = f'{len(entry.runs)}'
  if entry.diverged:
    seeds += f' of {len(entry.runs) + len(entry.diverged)}, others diverged'
  return {
    'learning rate': Cell(entry.learning_rate, f'{entry.learning_rate:g}'),
    'seeds': Cell(len(entry.runs), seeds),
    'steps': spread(list(set(entry.values('steps').values())), ',.0f'),
    'LSSR': _over_seeds(entry, 'lssr', '.3f'),
    f'validation {metric}': _over_seeds(entry, f'validation_{metric}', '.4f'),
    'difference to BSP': spread(differences, '+z.4f'),
    f'test {metric}': _over_seeds(entry, f'test_{metric}', '.4f'),
    'sent per worker': Cell(sent, facts.size(sent)),
    'of BSP': spread([entry.share_of_bsp], '.1%'),
    **_times(entry),
  }


def _times(entry: Entry) -> dict[str, Cell]:
  if history.time_field(entry.runs.values()) == 'seconds':
    return {'seconds': _over_seeds(entry, 'seconds', '.1f')}
  return {
    'virtual seconds': _over_seeds(entry, 'virtual_seconds', ',.1f'),
    'waited': _over_seeds(entry, 'waited', ',.1f'),
    'staleness': _over_seeds(entry, 'staleness', '.2f'),
  }


def _over_seeds(entry: Entry, field: str, form: str) -> Cell:
  return spread(list(entry.values(field).values()), form)


def rates(
  entries: Sequence[Entry], chosen: Sequence[Entry]
) -> dict[str, dict[str, Cell]]:
  """Returns a table of all learning rates, with the scores that decided."""
  metric = metric_of(chosen)
  return {
    f'{e.label}, learning rate {e.learning_rate:g}': {
      f'validation {metric}': _over_seeds(e, f'validation_{metric}', '.4f'),
      'diverged': Cell(len(e.diverged), str(len(e.diverged))),
      'chosen': Cell(None, 'yes' if e in chosen else ''),
    }
    for e in entries
  }


def markdown(rows: dict[str, dict[str, Cell]]) -> str:
  """Formats the table as Markdown."""
  names = list(next(iter(rows.values())))
  lines = [
    ['method', *names],
    ['---', *('---:' for _ in names)],
    *(
      [label, *(cell.text for cell in row.values())]
      for label, row in rows.items()
    ),
  ]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def show(rows: dict[str, dict[str, Cell]]) -> None:
  """Prints the most important columns, as wide as the terminal."""
  first, *_ = rows.values()
  wanted = ('LSSR', 'of BSP', 'seconds', 'virtual seconds')
  names = [n for n in first if n in wanted or n.startswith('validation ')]
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
  table.add_column('method')
  for name in names:
    table.add_column(name.replace(' ', '\n'), justify='right')
  for label, row in rows.items():
    table.add_row(label, *(row[name].text for name in names))
  rich.console.Console().print(table)


def write_csv(
  entries: Sequence[Entry], chosen: Sequence[Entry], path: pathlib.Path
) -> None:
  """Writes a CSV file with a line per run."""
  rows = [
    {
      'label': entry.label,
      'learning_rate': entry.learning_rate,
      'chosen': entry in chosen,
      **run.outcome,
    }
    for entry in entries
    for run in entry.runs.values()
  ]
  names = dict.fromkeys(name for row in rows for name in row)
  with path.open('w', newline='', encoding='utf-8') as file:
    writer = csv.DictWriter(file, list(names))
    writer.writeheader()
    writer.writerows(rows)
