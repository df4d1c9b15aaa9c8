"""The HTML around a report's figures and tables."""

import base64
import gzip
import math
import pathlib
import re

from markupsafe import Markup

from selsync_jax.report import page
from selsync_jax.report.figure import Axis, Line, Look, Panel, Plot
from selsync_jax.report.tables import Cell

EVIL = '<script>"&'
ESCAPED = '&lt;script&gt;&#34;&amp;'


def test_a_page_writes_names_as_text(tmp_path):
  axis = Axis((0, 1), EVIL, EVIL)
  lines = [Line(f'{EVIL}{i}', [0], [1], Look('ink')) for i in range(2)]
  plot = Plot(EVIL, EVIL, EVIL, [Panel(EVIL, axis, axis, lines)])
  sections = [
    page.key_figures([(EVIL, EVIL, EVIL)]),
    page.table(EVIL, EVIL, {EVIL: {EVIL: page.link(EVIL, EVIL)}}, EVIL),
    page.table(EVIL, EVIL, {EVIL: {EVIL: Cell(None, EVIL)}}),
    page.figure(plot),
  ]
  path = page.write(tmp_path / 'page.html', EVIL, EVIL, sections)
  text = path.read_text()
  assert '<script>"' not in text
  assert text.count(ESCAPED) > 15


def test_a_number_is_exact_for_programs():
  for value in (1 / 3, math.inf, 12, 0.1):
    cell = page.number(value, 'about')
    assert cell == f'<data value="{value!r}">about</data>'


def test_a_cell_that_is_html_already_is_not_escaped_again():
  table = page.table('a', 'A', {'c': {'b': Cell(1, 'one')}})
  assert f'<td>{page.number(1, "one")}</td>' in table


def test_a_page_with_figures_holds_the_library_that_the_makefile_names(
  tmp_path,
):
  figure = [Markup('<figure>')]
  text = page.write(tmp_path / 'page.html', 'a', '', figure).read_text()
  packed = re.search(r'id="plotly">(.*?)</script>', text)[1]
  library = gzip.decompress(base64.b64decode(packed)).decode()
  makefile = pathlib.Path(__file__).parents[2] / 'Makefile'
  version = re.search(r'PLOTLY := (\S+)', makefile.read_text())[1]
  assert f'plotly.js (basic - minified) v{version}\n' in library[:200]
  assert 'Licensed under the MIT license' in library[:200]
