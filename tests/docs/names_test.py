"""Extras, links and pictures in README and docs exist."""

import ast
import re
import tomllib

import pytest

from tests.support.pages import PAGES, ROOT


def test_the_extras_that_are_named_exist():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  extras = project['optional-dependencies']
  for page in PAGES:
    for named in re.findall(r'\.\[([\w,]+)\]', (ROOT / page).read_text()):
      assert set(named.split(',')) <= extras.keys(), named
  assert extras['cuda'] == ['jax[cuda]']


def anchors(path):
  """GitHub's anchors for the headings of a page."""
  for heading in re.findall(r'^#+ (.*)$', path.read_text(), re.M):
    plain = re.sub(r'[^\w\- ]', '', heading.lower())
    yield plain.replace(' ', '-')


@pytest.mark.parametrize('page', PAGES)
def test_every_link_leads_somewhere(page):
  text = (ROOT / page).read_text()
  for target in re.findall(r'\]\(([^)\s]+)\)', text):
    if '://' in target:
      continue
    file, _, anchor = target.partition('#')
    path = (ROOT / page).parent / file if file else ROOT / page
    assert path.exists(), target
    assert not anchor or anchor in anchors(path), target


def test_every_picture_is_small_and_shown():
  shown = ' '.join((ROOT / page).read_text() for page in PAGES)
  for picture in (ROOT / 'docs' / 'images').iterdir():
    assert picture.stat().st_size < 100_000
    assert f'images/{picture.name})' in shown


def printed():
  """Every text in the package's code, with spaces for its values."""
  for path in (ROOT / 'selsync_jax').rglob('*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.JoinedStr):
        yield ''.join(
          part.value if isinstance(part, ast.Constant) else ' '
          for part in node.values
        )
      elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def test_the_program_prints_every_line_of_troubleshooting():
  page = (ROOT / 'docs' / 'troubleshooting.md').read_text()
  lines = re.findall(r'^\| `([^`]+)` \|', page, re.M)
  assert 25 <= len(lines) <= 45
  texts = '\0'.join(printed())
  for line in lines:
    pattern = '[^\0]*'.join(map(re.escape, line.split(' ... ')))
    assert re.search(pattern, texts), line
