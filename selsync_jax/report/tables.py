"""Tables: cells by row and column, as text, as LaTeX, and in a terminal.

`page.table` writes one into a page.
"""

from collections.abc import Mapping, Sequence
import textwrap
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.table


class Cell(NamedTuple):
  """A value and its text; the value is `None` if the cell has no number."""

  value: Any
  text: str


NONE = Cell(None, '–')
"""A cell without a value."""

Table = Mapping[str, Mapping[str, Cell]]
"""The cells of each row by column. All rows have the columns of the first."""

_LATEX = str.maketrans(
  {character: f'\\{character}' for character in '&%$#_{}'}
  | {'\\': r'\textbackslash{}', '~': r'\textasciitilde{}'}
  | {'^': r'\textasciicircum{}', '±': r'$\pm$', '–': '--'}
)


def _lines(rows: Table) -> list[list[str]]:
  """Returns the texts of the head, and of each row."""
  first, *_ = rows.values()
  return [
    ['method', *first],
    *([label, *(c.text for c in row.values())] for label, row in rows.items()),
  ]


def markdown(rows: Table) -> str:
  """Formats the table as Markdown."""
  head, *body = _lines(rows)
  lines = [head, ['---', *('---:' for _ in head[1:])], *body]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def latex(rows: Table) -> str:
  """Formats the table for LaTeX with the package booktabs."""
  lines = _lines(rows)
  head, *body = (
    ' & '.join(text.translate(_LATEX) for text in line) + r' \\'
    for line in lines
  )
  parts = [
    rf'\begin{{tabular}}{{l{"r" * (len(lines[0]) - 1)}}}',
    *(r'\toprule', head, r'\midrule', *body, r'\bottomrule'),
    r'\end{tabular}',
  ]
  return '\n'.join(parts) + '\n'


def show(
  rows: Table,
  title: str | None = None,
  corner: str | None = 'method',
  spare: Sequence[str] = (),
) -> None:
  """Prints a table, as wide as the terminal.

  `corner` is the title of the first column, `None` for a table without titles.
  A narrow terminal leaves out the columns in `spare`, in this order.
  """
  console = rich.console.Console()
  columns = list(next(iter(rows.values())))

  def draw(shown):
    table = rich.table.Table(
      title=title,
      box=rich.box.SIMPLE_HEAD,
      show_header=corner is not None,
      padding=(0, 1, 0, 0),
      pad_edge=False,
      show_edge=False,
    )
    table.add_column(corner or '')
    for column in shown:
      widest = max(len(row[column].text) for row in rows.values())
      head = textwrap.fill(column, max(widest, 10), break_on_hyphens=False)
      table.add_column(head, justify='right' if corner else 'left')
    for label, row in rows.items():
      table.add_row(label, *(row[column].text for column in shown))
    return table

  unlimited = console.options.update(width=10_000)
  for column in spare:
    needed = console.measure(draw(columns), options=unlimited).maximum
    if needed > console.width:
      columns.remove(column)
  console.print('', draw(columns), '', sep='\n')
