"""run.json: where a run comes from, session by session."""

import json
import subprocess
import sys

from selsync_jax.report import origin
from selsync_jax.runs import history
from selsync_jax.runs import provenance
from tests.training import short_runs

DEVICES = {'platform': 'cpu', 'kind': 'cpu', 'count': 1, 'processes': 1}


def test_a_session_is_added_by_every_start_that_takes_steps(
  tmp_path, monkeypatch
):
  command = ['python', 'train.py', '--cluster_token=secret', '--seed=a b']
  monkeypatch.setattr(sys, 'orig_argv', command)
  for steps in (2, 4, 4):
    short_runs.run(tmp_path, None, steps=steps, data__backend='numpy')
  first, second = json.loads((tmp_path / 'run.json').read_text())
  assert (first['step'], second['step']) == (0, 2)
  assert first['began'] <= second['began']
  line = "python train.py --cluster_token=... '--seed=a b'"
  assert first['command'] == line
  assert first['versions']['jax'] and first['devices']['platform'] == 'cpu'
  assert '; session 2, from step 2; Python ' in origin.line(
    history.read(tmp_path)
  )


def test_the_foot_of_the_page_says_where_the_run_comes_from(default_run):
  page = (default_run.workdir / 'report.html').read_text()
  footer = page[page.index('<footer>') :]
  (session,) = provenance.sessions(default_run.workdir)
  for package, version in session['versions'].items():
    assert f'{package} {version}' in footer
  assert session['host'] in footer and 'train.py --workdir=' in footer
  for repository in session['code'].values():
    assert repository['commit'][:12] in footer


def test_a_repository_is_known_by_its_commit_and_its_changes(tmp_path):
  def git(*arguments):
    identity = ('-c', 'user.name=a', '-c', 'user.email=a@b')
    subprocess.run(['git', *identity, *arguments], cwd=tmp_path, check=True)

  assert provenance.repository(tmp_path) is None
  git('init', '-q')
  assert provenance.repository(tmp_path) is None  # It has no commit yet.
  (tmp_path / 'a').write_text('1')
  git('add', 'a')
  git('commit', '-qm', 'a')
  (tmp_path / 'inside').mkdir()
  root, found = provenance.repository(tmp_path / 'inside')
  assert root == str(tmp_path) and not found['modified']
  (tmp_path / 'a').write_text('2')
  assert provenance.repository(tmp_path)[1] == found | {'modified': True}


def test_the_secret_is_left_out_as_an_argument_of_its_own(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(
    sys, 'orig_argv', ['train.py', '--cluster_token', 'secret', '--restart']
  )
  provenance.append(tmp_path, 0, DEVICES)
  (session,) = provenance.sessions(tmp_path)
  assert session['command'] == 'train.py --cluster_token ... --restart'


def test_a_damaged_record_is_reported_and_begun_again(tmp_path, capsys):
  (tmp_path / 'run.json').write_text('{"a": 1}')
  assert provenance.sessions(tmp_path) == []
  assert 'run.json is damaged: ' in capsys.readouterr().err
  provenance.append(tmp_path, 7, DEVICES)
  (session,) = provenance.sessions(tmp_path)
  assert session['step'] == 7
