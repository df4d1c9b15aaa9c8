"""The site of the documentation: every page, the API, and the notebook."""

import html
import inspect
import re
import sys

import pytest

import selsync_jax
from tests.support import live_runs
from tests.support.session import ROOT


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_its_notebook_runs(
  tmp_path, data_dir
):
  del data_dir  # The notebook finds it by the environment.
  done = live_runs.run(
    *(sys.executable, '-m', 'sphinx', '--fail-on-warning', '--quiet'),
    *('-d', tmp_path / 'cache', ROOT / 'docs', tmp_path / 'site'),
    timeout=500,
  )
  assert done.returncode == 0, done.stderr
  api, notebook = (
    html.unescape((tmp_path / 'site' / f'{name}.html').read_text())
    for name in ('api', 'first-report')
  )
  described = re.findall(r'id="selsync_jax\.(\w+)"', api)
  public = {
    name
    for name in set(selsync_jax.__all__) - {'AXIS'}
    if not inspect.ismodule(getattr(selsync_jax, name))
  }
  assert public <= set(described)
  share = re.search(r'([\d.]+) of all digits are right', notebook)
  assert float(share[1]) > 0.8
  assert notebook.count('/50') <= 10  # A line per evaluation, no bar.
  assert '_images/' in notebook
