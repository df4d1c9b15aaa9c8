"""Numbers as text: the results of a run as a table, and means over seeds."""

from collections.abc import Mapping, Sequence
import statistics
from typing import Any, NamedTuple

import numpy as np
import rich.box
import rich.console
import rich.table

from selsync_jax.runs import history


class Cell(NamedTuple):
  """A value and its text; the value is `None` if the cell has no number."""

  value: Any
  text: str


def size(count: float) -> str:
  """Formats a number of bytes with an SI prefix."""
  for unit in ('B', 'kB', 'MB', 'GB'):
    if count < 1000:
      return f'{count:.3g} {unit}'
    count /= 1000
  return f'{count:.3g} TB'


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


# The name in the table, and the format, of fields of summary.json.
_FACTS = {
  'steps': ('steps', '{:,}'.format),
  'sync_steps': ('synchronizations', '{:,}'.format),
  'lssr': ('LSSR (local steps / steps)', '{:.3f}'.format),
  'bytes_per_worker': ('bytes sent per worker', size),
  'injection_bytes': ('of these, examples injected', size),
  'bytes_per_worker_bsp': ('the same run under BSP', size),
  'seconds': ('seconds', '{:.1f}'.format),
  'virtual_seconds': ('virtual seconds', '{:,.1f}'.format),
  'waited': ('of these, waiting for other workers', '{:,.1f}'.format),
  'staleness': ('mean staleness of gradients', '{:.2f}'.format),
  'samples_per_second': ('samples/s', '{:,.0f}'.format),
}


def facts(outcome: Mapping[str, Any]) -> dict[str, Cell]:
  """Returns the scores and costs of a run by name, from its `summary.json`."""
  losses = ('test_loss', 'validation_loss')
  scores = sorted(filter(history.is_score, outcome), key=losses.__contains__)
  consensus = {k: '' if k in losses else ' of the consensus' for k in scores}
  names = {k: k.replace('_', ' ') + of for k, of in consensus.items()}
  rows = {k: (name, '{:.4f}'.format) for k, name in names.items()} | _FACTS
  return {
    name: Cell(outcome[field], text(outcome[field]))
    for field, (name, text) in rows.items()
    if outcome.get(field) is not None
  }


def show(summary: Mapping[str, Any]) -> None:
  """Prints the table of a summary, with method and workers as its title."""
  show_table(summary, f'{summary["method"]}, {summary["workers"]} workers')


def show_table(outcome: Mapping[str, Any], title: str | None = None) -> None:
  """Prints the table of a summary, or of some of its fields."""
  table = rich.table.Table(
    title=title, box=rich.box.SIMPLE_HEAD, show_header=False
  )
  for name, cell in facts(outcome).items():
    table.add_row(name, cell.text)
  rich.console.Console().print(table)
