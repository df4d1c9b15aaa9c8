"""What the README tells a newcomer to type, typed."""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / 'README.md').read_text()


def blocks(language):
  return re.findall(rf'```{language}\n(.*?)```', README, re.S)


# An import hook that stands for an environment with jax and optax alone.
WITHOUT = """
import sys

class Without:
  def find_spec(self, name, path=None, target=None):
    if name.split('.')[0] in {
        'tensorflow', 'tensorflow_datasets', 'flax', 'orbax', 'sklearn',
        'ml_collections', 'rich'}:
      raise ModuleNotFoundError(f'{name} is not in this environment')

sys.meta_path.insert(0, Without())
"""


def test_the_own_loop_runs_where_there_is_only_jax_and_optax():
  (snippet,) = blocks('python')
  done = subprocess.run(
    [sys.executable, '-c', WITHOUT + snippet],
    env=os.environ | {'JAX_NUM_CPU_DEVICES': '4'},
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  changes = [float(c) for c in done.stdout.strip(' []\n').split()]
  assert len(changes) == 4
  assert all(change >= 0 for change in changes)


COMMANDS = [
  line
  for block in blocks('sh')
  for line in block.splitlines()
  if 'train.py' in line
]


@pytest.mark.parametrize('command', COMMANDS)
def test_every_training_command_runs(command, tmp_path, data_dir):
  python, *arguments = shlex.split(command)
  assert python == '.venv/bin/python'
  done = subprocess.run(
    [
      sys.executable,
      *arguments,
      '--config.steps=2',
      f'--config.data.dir={data_dir}',
      f'--workdir={tmp_path}',
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'summary.json').exists()


def test_the_make_targets_and_extras_that_it_names_exist():
  makefile = (ROOT / 'Makefile').read_text()
  for target in re.findall(r'^make (\w+)', README, re.M):
    assert re.search(rf'^{target}:', makefile, re.M)
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  extras = project['optional-dependencies']
  for extra in re.findall(r"-e '\.\[(\w+)\]'", README):
    assert extra in extras
  assert extras['cuda'] == ['jax[cuda]']
