"""`selsync` and `python -m selsync_jax`: one door to all commands."""

import importlib
import json
import os
import pathlib
import sys
import tomllib

import pytest

from selsync_jax import __main__ as door
from selsync_jax.commands import COMMANDS
from selsync_jax.fields import FIELDS
from tests.support import live_runs
from tests.support.marks import slow

ROOT = pathlib.Path(__file__).parents[2]
every_command = pytest.mark.parametrize('command', COMMANDS)

# Runs a command where nothing heavy can be imported.
WITHOUT = """
import sys

class Refused:
  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in {'jax', 'matplotlib', 'tensorflow', 'flax'}:
      raise ImportError(f'{name} is imported')

sys.meta_path.insert(0, Refused())
from selsync_jax.__main__ import main, run_command
"""
LIGHT = WITHOUT + 'main()\n'
# Prints the help of several commands, and the code that each ends with.
HELP = (
  WITHOUT
  + """
import contextlib, io, json

shown = {}
for command in sys.argv[1:]:
  output, code = io.StringIO(), 0
  try:
    with contextlib.redirect_stdout(output):
      run_command([command, '--help'])
  except SystemExit as end:
    code = end.code
  shown[command] = code, output.getvalue()
print(json.dumps(shown))
"""
)


def light(*arguments):
  return live_runs.run(sys.executable, '-c', LIGHT, *arguments)


@pytest.mark.parametrize('arguments', [[], ['--help'], ['-h']])
def test_without_a_command_the_commands_are_listed(arguments, capsys):
  door.run_command(arguments)
  output = capsys.readouterr().out
  for command, description in COMMANDS.items():
    assert f'  {command} ' in output and description in output


@every_command
def test_a_command_is_a_module_that_says_the_same_of_itself(command):
  module = importlib.import_module(f'selsync_jax.commands.{command}')
  assert module.__doc__.splitlines()[0] == COMMANDS[command]
  assert callable(module.main)


@pytest.fixture(scope='module')
def helped():
  """The exit code and the output of every command's help."""
  done = live_runs.run(sys.executable, '-c', HELP, *COMMANDS)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@every_command
def test_help_is_one_screen_and_needs_nothing_heavy(command, helped):
  code, output = helped[command]
  assert not code
  lines = output.splitlines()
  assert lines[0].startswith(f'usage: selsync {command} ')
  assert max(map(len, lines)) <= 80
  assert lines[2] == COMMANDS[command] and lines[4].startswith('  --')
  without = 'report', 'launch', 'export', 'evaluate', 'meet', 'status', 'replay'
  takes_config = command not in without
  own = '\n'.join(lines).partition('\nfields of the config:')[0]
  assert len(own.splitlines()) <= 24
  listed = [f'  --config.{name} ' for name in FIELDS]
  text = '\n'.join(f'{line} ' for line in lines)
  assert [name in text for name in listed] == [takes_config] * len(listed)


def test_help_fits_a_narrow_terminal(monkeypatch, capsys):
  monkeypatch.setenv('COLUMNS', '60')
  with pytest.raises(SystemExit):
    door.run_command(['plan', '--help'])
  lines = capsys.readouterr().out.splitlines()
  assert max(map(len, lines)) <= 60
  start = '  --inner-bandwidth     Bandwidth between the devices of a'
  assert any(line.startswith(start) for line in lines)


def test_launch_needs_nothing_heavy():
  done = light('launch', '--processes=1', '--', 'echo', '--processes=2')
  assert done.returncode == 0, done.stderr
  assert done.stdout == '[0] --processes=2\n'


def test_an_unknown_command_is_one_line_and_exit_code_2(refused):
  assert refused('trian') == (
    "selsync: 'trian' is not one of train, compare, simulate, tune, "
    'plan, report, export, evaluate, launch, meet, status, replay'
  )


CPU_RUN = """{"workers": 1, "seed": 0, "sync": {"method": "bsp"}, "data":
{"name": "x", "partition": "seldp"}, "model": {"name": "x"}, "device": "cpu"}"""


ROCKET = 'JAX_PLATFORMS=rocket'


@pytest.mark.parametrize(
  'arguments, variable, line',
  [
    ('plan --lssr=0.9', ROCKET, f'{ROCKET}: JAX canno'),
    slow('export {run} --out=a.npz', ROCKET, '{run}: this run has not sav'),
    ('evaluate {run}', ROCKET, '{run}: this run has not sav'),
    ('evaluate a', ROCKET, f'{ROCKET}: JAX canno'),
  ],
)
def test_a_command_starts_jax_as_its_config_says_or_says_why_not(
  arguments, variable, line, tmp_path
):
  (tmp_path / 'config.json').write_text(CPU_RUN)
  command = arguments.format(run=tmp_path).split()
  done = live_runs.run(
    *(sys.executable, '-m', 'selsync_jax', *command),
    env=os.environ | dict([variable.split('=', 1)]),
  )
  assert done.returncode == 2
  assert done.stderr.startswith(f'{command[0]}: {line.format(run=tmp_path)}')
  assert done.stderr.count('\n') == 1


@pytest.mark.parametrize(
  'command',
  [pytest.param('--help', marks=pytest.mark.slow), 'plan --help', 'report'],
)
def test_a_reader_that_leaves_changes_nothing(command):
  """`true` closes the pipe before anything is printed."""
  script = f'"$0" -m selsync_jax {command} 2>&1 | true; exit ${{PIPESTATUS[0]}}'
  done = live_runs.run('bash', '-c', script, sys.executable)
  code = 2 if command == 'report' else 0
  assert (done.returncode, done.stdout, done.stderr) == (code, '', '')


@pytest.mark.parametrize('name', ['train', 'compare'])
def test_the_scripts_at_the_root_are_front_doors(name, tmp_path):
  done = live_runs.run(
    *(sys.executable, ROOT / f'{name}.py', '--config.workers=0'),
    cwd=tmp_path,
    env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
  )
  assert done.returncode == 2
  assert done.stderr == f'{name}.py: config.workers=0: must be in [1, 4096]\n'


def test_the_console_script_is_the_door():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  module, _, function = project['scripts']['selsync'].partition(':')
  assert getattr(importlib.import_module(module), function) is door.main
