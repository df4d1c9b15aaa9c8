"""The site of the documentation, for Sphinx; `make docs` builds it.

JAX, Flax and Optax use Sphinx, too. MkDocs has had no release since 2024, its
theme Material is at the end of its maintenance, and the successor of both,
Zensical, is an alpha version (November 2026).
"""

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import selsync_jax

_OUTSIDE = re.compile(r'\[((?:[^][]|\[[^][]*\])+)\]\(\.\./([^)#]+)[^)]*\)')

project = 'selsync_jax'
author = 'The selsync_jax authors'
release = selsync_jax.__version__
extensions = ['myst_nb', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
html_show_copyright = False
html_theme = 'furo'
html_static_path = ['site.css']
html_css_files = ['site.css']
html_math_renderer = 'mathml'

autodoc_member_order = 'bysource'
autodoc_typehints = 'none'  # Docstrings say them, with shapes.
default_role = 'code'
myst_heading_anchors = 3
nb_execution_in_temp = True
nb_execution_mode = 'force'
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True


def _name(link):
  """The text of a link to a file of the repository, with the file's path."""
  text, path = link.groups()
  return text if path.strip('/') in text else f'{text} (`{path}`)'


def _adapt(app, name, source):
  """Names files outside this folder, and shows diagrams as text."""
  del app, name
  text = _OUTSIDE.sub(_name, source[0])
  source[0] = text.replace('```mermaid', '```text')


def _formula(page, node):
  """Writes a formula as MathML, which browsers draw without a script."""
  page.body.append(tex2mathml(node.astext(), as_block=False))
  raise nodes.SkipNode


def setup(app):
  """Called by Sphinx."""
  app.add_html_math_renderer('mathml', (_formula, None), (_formula, None))
  app.connect('source-read', _adapt)
