"""Code blocks and commands of README and docs."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ['README.md', 'CONTRIBUTING.md']
PAGES += sorted(f'docs/{p.name}' for p in ROOT.glob('docs/*.md'))


def blocks(page, language):
  """`(line, text)` of the fenced blocks of a language."""
  text = (ROOT / page).read_text()
  for match in re.finditer(rf'^```{language}\n(.*?)^```', text, re.S | re.M):
    yield text[: match.start(1)].count('\n') + 1, match[1]


def commands(page):
  """The arguments of every command in the shell blocks of a page."""
  for _, text in blocks(page, 'sh'):
    for line in text.replace('\\\n', ' ').splitlines():
      if arguments := shlex.split(line, comments=True):
        yield arguments
