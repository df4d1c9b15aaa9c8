"""`selsync report`: its page, and its refusals."""

import pytest

from selsync_jax.__main__ import run_command
from selsync_jax.commands import report as command
from selsync_jax.config import ConfigError
from selsync_jax.report import run_page
from tests.support import recorded
from tests.support.lines import raises


def report(*arguments):
  run_command(['report', *map(str, arguments)])


@pytest.fixture
def workdir(tmp_path):
  recorded.write_run(tmp_path / 'run', recorded.random_changes(30, 2))
  return tmp_path / 'run'


@pytest.mark.usefixtures('no_files')
def test_the_command_writes_the_page(workdir, tmp_path, capsys):
  text = run_page.write([workdir], workdir).read_text()
  out = tmp_path / 'out'
  report(workdir, f'--out={out}')
  assert capsys.readouterr().out.strip() == str(out / 'report.html')
  assert (out / 'report.html').read_text() == text


def test_a_page_that_cannot_be_written_is_one_line(workdir, tmp_path, refused):
  file = tmp_path / 'file'
  file.touch()
  line = refused('report', workdir, f'--out={file}', code=1)
  assert line == f'report: {file}/plots: Not a directory'


def test_a_mistake_is_one_line_and_exit_code_2(workdir, tmp_path, refused):
  cases = {
    (tmp_path,): f'{tmp_path}: not the workdir of a run, no config.json',
    (__file__,): f'{__file__}: not the workdir of a run, no config.json',
    (workdir, '--out='): '--out=: must not be empty',
    (workdir, '--islands=nowhere'): '--islands=nowhere: No such file or '
    'directory',
    (workdir, tmp_path): 'several workdirs: give --out=FOLDER',
  }
  for arguments, line in cases.items():
    assert refused('report', *arguments) == f'report: {line}'


def test_a_run_whose_name_is_not_utf_8_is_refused(
  workdir, tmp_path, monkeypatch
):
  odd = tmp_path / 'odd\udcff'
  recorded.write_run(odd, recorded.random_changes(30, 2))
  monkeypatch.chdir(odd)
  for named in ([odd], ['.'], [workdir, odd, '--out=o']):
    shown = '.' if named == ['.'] else odd
    rule = 'its name must be UTF-8, for the figures; rename it'
    with raises(ConfigError, f'{shown}: {rule}'):
      command.main(list(map(str, named)))
