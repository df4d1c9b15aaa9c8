"""One self-contained HTML page, which fetches nothing.

The files in `templates/` escape every text except `Markup`. The page holds
plotly.js (its basic bundle), compressed; `make plotly` fetches another version.
"""

import base64
from collections.abc import Iterable
from importlib import resources
import pathlib
import types
from typing import Any

import jinja2
from markupsafe import Markup

from selsync_jax.report import interactive
from selsync_jax.report.figure import DARK, LIGHT, Line, Look, Plot
from selsync_jax.report.tables import Cell, Table
from selsync_jax.runs import files

_PLOTLY = resources.files('selsync_jax.report') / 'plotly'


def number(value: Any, text: str) -> str:
  """Returns a number as text, with its exact value as data unless `None`.

  A line may break only before an interval, `[low, high]`.
  """
  if value is None:
    return text
  parts = [part.replace(' ', '\N{NO-BREAK SPACE}') for part in text.split(' [')]
  form = Markup('<data value="{}">{}</data>')
  return form.format(repr(value), ' ['.join(parts))


def _cell(cell: Cell | str) -> str:
  return cell if isinstance(cell, str) else number(*cell)


_TEMPLATES = jinja2.Environment(
  loader=jinja2.PackageLoader('selsync_jax.report'),
  autoescape=True,
  keep_trailing_newline=True,
  lstrip_blocks=True,
  trim_blocks=True,
  undefined=jinja2.StrictUndefined,
)
_TEMPLATES.policies['json.dumps_kwargs'] = {'separators': (',', ':')}
_TEMPLATES.filters['cell'] = _cell
_SECTIONS: Any = _TEMPLATES.get_template('sections.html.j2').module


def write(
  path: pathlib.Path, title: str, below: str, sections: Iterable[Markup]
) -> pathlib.Path:
  """Writes a page with a title, a text below it, and sections."""
  plotly = (_PLOTLY / 'plotly-basic.min.js.gz').read_bytes()
  text = _TEMPLATES.get_template('page.html.j2').render(
    title=title,
    below=below,
    sections=sections,
    light=LIGHT,
    dark=DARK,
    plotly=base64.b64encode(plotly).decode(),
  )
  files.write(path, text)
  return path


# Sections of a page: `key_figures([(name, number, remark)])`, `footer(lines)`.
key_figures = _SECTIONS.key_figures
footer = _SECTIONS.footer


def table(
  name: str,
  title: str,
  rows: Table,
  corner: str = '',
  summary: str = '',
  folded: Table = types.MappingProxyType({}),
) -> Markup:
  """Returns a section with a table, whose first column has the title `corner`.

  The line `summary` unfolds the rows in `folded`.
  """
  head = [corner, *next(iter({**rows, **folded}.values()), ())]
  return _SECTIONS.table(name, title, head, rows, summary, folded)


def link(address: str, text: str) -> Cell:
  """Returns a cell with a link to a file beside the page."""
  return Cell(None, _SECTIONS.link(address, text))


def figure(plot: Plot) -> Markup:
  """Returns a section with one figure, which the page's script draws."""
  legend = [
    (name, mark.look if isinstance(mark, Line) else Look(mark.color, width=8))
    for name, mark in plot.legend.items()
  ]
  return _SECTIONS.figure(plot, legend, interactive.describe(plot))
