"""run.json: the origin of a run, session by session."""

import subprocess
import sys

import pytest

from selsync_jax.report import run_page
from selsync_jax.runs import provenance
from tests.support import recorded

DEVICES = {'platform': 'cpu', 'kind': 'cpu', 'count': 1, 'processes': 1}


def test_the_foot_of_the_page_says_where_the_run_comes_from(
  tmp_path, monkeypatch
):
  workdir = tmp_path / 'run'
  recorded.write_run(workdir, recorded.random_changes(5, 2))
  command = f'train.py --workdir={workdir}'
  monkeypatch.setattr(sys, 'orig_argv', ['python', *command.split()])
  provenance.append(workdir, 0, DEVICES)
  page = run_page.write([workdir], workdir).read_text()
  footer = page[page.index('<footer>') :]
  (session,) = provenance.sessions(workdir)
  for package, version in session['versions'].items():
    assert f'{package} {version}' in footer
  assert session['host'] in footer and command in footer
  for repository in session['code'].values():
    assert repository['commit'][:12] in footer


def test_a_repository_is_known_by_its_commit_and_its_changes(tmp_path):
  def git(*arguments):
    identity = ('-c', 'user.name=a', '-c', 'user.email=a@b')
    subprocess.run(['git', *identity, *arguments], cwd=tmp_path, check=True)

  assert provenance.repository(tmp_path) is None
  git('init', '-q')
  assert provenance.repository(tmp_path) is None  # No commit yet.
  (tmp_path / 'a').write_text('1')
  git('add', 'a')
  git('commit', '-qm', 'a')
  (tmp_path / 'inside').mkdir()
  root, found = provenance.repository(tmp_path / 'inside')
  assert root == str(tmp_path) and not found['modified']
  (tmp_path / 'a').write_text('2')
  assert provenance.repository(tmp_path)[1] == found | {'modified': True}


@pytest.mark.parametrize(
  'command, shown',
  [
    ('train.py --cluster_token=secret --restart', '--cluster_token=...'),
    ('train.py --cluster_token secret --restart', '--cluster_token ...'),
  ],
)
def test_the_secret_of_a_cluster_is_left_out(
  command, shown, tmp_path, monkeypatch
):
  monkeypatch.setattr(sys, 'orig_argv', command.split())
  provenance.append(tmp_path, 0, DEVICES)
  (session,) = provenance.sessions(tmp_path)
  assert session['command'] == f'train.py {shown} --restart'


def test_a_damaged_record_is_reported_and_started_again(tmp_path, capsys):
  (tmp_path / 'run.json').write_text('{"a": 1}')
  assert provenance.sessions(tmp_path) == []
  assert 'run.json is damaged: ' in capsys.readouterr().err
  provenance.append(tmp_path, 7, DEVICES)
  (session,) = provenance.sessions(tmp_path)
  assert session['step'] == 7
