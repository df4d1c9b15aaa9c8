"""A run begins and resumes wherever the command is typed."""

import itertools
import os
import subprocess
import sys

import pytest

from tests.support.terminal import on_terminal

# Settings that must make no difference to a run, with two values each. In the
# columns of `SESSIONS`, any two of them occur with all four pairs of values.
SURROUNDINGS = {
  'output': ('pipe', 'terminal'),
  'folder': ('here', 'there'),
  'PYTHONHASHSEED': ('1', '2'),
  'LC_ALL': ('C', 'C.UTF-8'),
  'TERM': ('dumb', 'xterm-256color'),
  'COLUMNS': ('20', '300'),
  'NO_COLOR': ('', '1'),
  'HOME': ('ann', 'bob'),
  'USER': ('ann', 'bob'),
}
SESSIONS = (
  *('000000000', '111111000', '111000111', '100110110'),
  *('010101101', '001011011'),
)


def test_the_sessions_have_every_pair():
  for one, other in itertools.combinations(range(len(SURROUNDINGS)), 2):
    assert len({(row[one], row[other]) for row in SESSIONS}) == 4


@pytest.mark.slow  # Six processes train a step, and another one evaluates.
def test_a_run_resumes_on_any_terminal_or_none_in_any_locale_and_folder(
  tmp_path,
):
  train = ['train', '--noreport', '--config.mapper=vmap']
  train += ['--config.data.backend=numpy', f'--workdir={tmp_path / "run"}']
  for step, row in enumerate(SESSIONS, 1):
    found = run([*train, f'--config.steps={step}'], row, tmp_path)
    assert step == 1 or f'resuming from step {step - 1}' in found
  assert 'test loss' in run(
    ['evaluate', str(tmp_path / 'run'), '--split=test'], SESSIONS[1], tmp_path
  )


def run(command, row, tmp_path):
  """The output of a command in the surroundings of a session."""
  pairs = zip(SURROUNDINGS.items(), row, strict=True)
  chosen = {name: values[int(index)] for (name, values), index in pairs}
  output, folder = chosen.pop('output'), tmp_path / chosen.pop('folder')
  chosen['HOME'] = str(tmp_path / chosen['HOME'])
  for needed in (folder, tmp_path / chosen['HOME']):
    needed.mkdir(exist_ok=True)
  if not chosen['NO_COLOR']:
    del chosen['NO_COLOR']
  line = ['-m', 'selsync_jax', *command]
  if output == 'terminal':
    return on_terminal(80, *line, cwd=folder, **chosen)
  done = subprocess.run(
    [sys.executable, *line],
    cwd=folder,
    env=os.environ | chosen,
    capture_output=True,
    text=True,
  )
  assert not done.returncode, done.stderr
  return done.stdout
