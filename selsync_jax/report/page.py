"""One self-contained HTML page, which fetches nothing.

The files in `templates/` escape every text except `Markup`. The page holds
plotly.js (its basic bundle), compressed; `make plotly` fetches another version.
"""

import base64
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from selsync_jax.report import interactive
from selsync_jax.report import palette
from selsync_jax.report.figure import Line
from selsync_jax.report.figure import Look
from selsync_jax.report.figure import Plot

_PLOTLY = resources.files('selsync_jax.report') / 'plotly'

_TEMPLATES = jinja2.Environment(
  loader=jinja2.PackageLoader('selsync_jax.report'),
  autoescape=True,
  keep_trailing_newline=True,
  lstrip_blocks=True,
  trim_blocks=True,
  undefined=jinja2.StrictUndefined,
)
_TEMPLATES.policies['json.dumps_kwargs'] = {'separators': (',', ':')}
_SECTIONS: Any = _TEMPLATES.get_template('sections.html.j2').module


def page(title: str, body: Iterable[Markup]) -> str:
  """Returns the page around a body."""
  plotly = (_PLOTLY / 'plotly-basic.min.js.gz').read_bytes()
  return _TEMPLATES.get_template('page.html.j2').render(
    title=title,
    body=body,
    light=palette.LIGHT,
    dark=palette.DARK,
    plotly=base64.b64encode(plotly).decode(),
  )


def header(title: str, below: str) -> Markup:
  """Returns the headline, and a line below it."""
  return _SECTIONS.header(title, below)


def key_figures(figures: Iterable[tuple[str, str, str]]) -> Markup:
  """Returns a section with large numbers, each `(name, number, remark)`."""
  return _SECTIONS.key_figures(figures)


def figure(plot: Plot) -> Markup:
  """Returns a section with one figure, which the page's script draws."""
  legend = [
    (name, mark.look if isinstance(mark, Line) else Look(mark.color, width=8))
    for name, mark in plot.legend.items()
  ]
  return _SECTIONS.figure(plot, legend, interactive.describe(plot))


def table(
  name: str,
  title: str,
  head: Sequence[str],
  rows: Iterable[tuple[str, Sequence[str]]],
) -> Markup:
  """Returns a section with one table; a row is its name and its cells."""
  return _SECTIONS.table(name, title, head, rows)


def number(value: Any, text: str) -> Markup:
  """Returns a number as text, with its exact value as data."""
  return _SECTIONS.number(repr(value), text)


def footer(lines: Iterable[str]) -> Markup:
  """Returns the footer of the page."""
  return _SECTIONS.footer(lines)


def link(address: str, text: str) -> Markup:
  """Returns a link to a file beside the page."""
  return _SECTIONS.link(address, text)
