"""What became of a run, as a table."""

from collections.abc import Mapping
from typing import Any

import rich.box
import rich.console
import rich.table


def _size(count: float) -> str:
  """Bytes as a reader counts them."""
  for unit in ('B', 'kB', 'MB', 'GB'):
    if count < 1000:
      return f'{count:.3g} {unit}'
    count /= 1000
  return f'{count:.3g} TB'


def summary_table(summary: Mapping[str, Any]) -> rich.table.Table:
  """What a run reached and what it cost, from its `summary.json`."""
  table = rich.table.Table(
    title=f'{summary["method"]}, {summary["workers"]} workers',
    box=rich.box.SIMPLE_HEAD,
    show_header=False,
  )
  sent, bsp = summary['bytes_per_worker'], summary['bytes_per_worker_bsp']
  for name, value in (
    *(
      (f'{name.replace("_", " ")} of the consensus', f'{summary[name]:.4f}')
      for name in summary
      if name.startswith('test_')
    ),
    ('steps', f'{summary["steps"]:,}'),
    ('synchronisations', f'{summary["sync_steps"]:,}'),
    ('LSSR (local steps / steps)', f'{summary["lssr"]:.3f}'),
    ('bytes sent per worker', _size(sent)),
    ('the same run under BSP', _size(bsp)),
    ('seconds', f'{summary["seconds"]:.1f}'),
    ('samples/s', f'{summary["samples_per_second"]:,.0f}'),
  ):
    table.add_row(name, value)
  return table


def show(summary: Mapping[str, Any]) -> None:
  """Prints the table."""
  rich.console.Console().print(summary_table(summary))
