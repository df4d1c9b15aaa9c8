"""A table of the results of a run."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.table

from selsync_jax.runs import history


class Fact(NamedTuple):
  """One line of the table: a name, a value, and the value's text."""

  name: str
  value: Any
  text: str


def size(count: float) -> str:
  """Formats a number of bytes with an SI prefix."""
  for unit in ('B', 'kB', 'MB', 'GB'):
    if count < 1000:
      return f'{count:.3g} {unit}'
    count /= 1000
  return f'{count:.3g} TB'


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


def facts(outcome: Mapping[str, Any]) -> list[Fact]:
  """Returns the scores and costs of a run, from its `summary.json`."""
  scores = [field for field in outcome if history.is_score(field)]
  scores.sort(key=_is_loss)
  lines = {k: (_score_name(k), '{:.4f}'.format) for k in scores} | _FACTS
  return [
    Fact(name, outcome[field], text(outcome[field]))
    for field, (name, text) in lines.items()
    if outcome.get(field) is not None
  ]


def _score_name(field):
  name = field.replace('_', ' ')
  return name if _is_loss(field) else f'{name} of the consensus'


def _is_loss(field):
  return field in ('test_loss', 'validation_loss')


def show(summary: Mapping[str, Any]) -> None:
  """Prints the table of a summary, with method and workers as its title."""
  show_table(summary, f'{summary["method"]}, {summary["workers"]} workers')


def show_table(outcome: Mapping[str, Any], title: str | None = None) -> None:
  """Prints the table of a summary, or of some of its fields."""
  table = rich.table.Table(
    title=title, box=rich.box.SIMPLE_HEAD, show_header=False
  )
  for fact in facts(outcome):
    table.add_row(fact.name, fact.text)
  rich.console.Console().print(table)
