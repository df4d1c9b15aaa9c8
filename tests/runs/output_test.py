"""A run's output when its reader has left, or lacks some characters."""

import os
import sys

import pytest

from tests.support import live_runs

pytestmark = pytest.mark.usefixtures('data_dir')


def train(redirected, workdir):
  """Runs `train.py` by a shell; returns its code and its remaining output."""
  command = live_runs.command('selsync', 1, workdir, '--config.steps=12')
  done = live_runs.run(
    *('bash', '-c', f'"$@" {redirected}; exit ${{PIPESTATUS[0]}}', ''),
    *command,
  )
  return done.returncode, done.stdout, done.stderr


UNREAD = {
  'a reader that leaves': '2>&1 | head -1',
  'a full disk for errors': '2>/dev/full',
  'all closed': '<&- >&- 2>&-',
}


@pytest.mark.parametrize('redirected', UNREAD.values(), ids=UNREAD)
@pytest.mark.slow
def test_a_run_outlives_its_reader(redirected, tmp_path):
  code, _, errors = train(redirected, tmp_path)
  assert (code, errors) == (0, '')
  assert (tmp_path / 'summary.json').exists()


PRINTING = """
import os, pathlib, sys
from selsync_jax.runs import output

output.own()
print(sys.argv[1])
print(sys.argv[1], file=sys.stderr)
with pathlib.Path(sys.argv[2]).open('w') as file:
  file.write(str(file.fileno()))
"""


@pytest.mark.parametrize(
  'redirected',
  ['>/dev/full', '2>/dev/full', '>&-', '2>&-', '<&- >&- 2>&-', '| true'],
)
def test_printing_never_fails_and_no_file_is_taken_for_a_stream(
  redirected, tmp_path
):
  file = tmp_path / 'file'
  script = f'"$@" {redirected}; exit ${{PIPESTATUS[0]}}'
  python = [sys.executable, '-c', PRINTING, 'some text', file]
  done = live_runs.run('bash', '-c', script, '', *python)
  assert done.returncode == 0
  assert {done.stdout, done.stderr} <= {'', 'some text\n'}
  assert int(file.read_text()) > 2


def test_characters_that_an_encoding_lacks_are_replaced(tmp_path):
  done = live_runs.run(
    *(sys.executable, '-c', PRINTING, 'Δ ▕█▏ ± é', tmp_path / 'file'),
    env=os.environ | {'PYTHONIOENCODING': 'latin-1'},
    encoding='latin-1',
  )
  assert (done.stdout, done.stderr) == ('? ??? ± é\n',) * 2


def test_a_pipe_that_is_full_for_a_while_loses_nothing():
  """Another program may have made the terminal non-blocking."""
  lines = 5000
  code = (
    'import os\nfrom selsync_jax.runs import output\noutput.own()\n'
    f'os.set_blocking(1, False)\nfor i in range({lines}): print("x" * 99)'
  )
  done = live_runs.run(
    'bash', '-c', '"$@" | (sleep 1; wc -l)', '', sys.executable, '-c', code
  )
  assert int(done.stdout) == lines
