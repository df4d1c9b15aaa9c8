"""Processes whose code differs."""

import sys

import flax.linen as nn
import pytest

from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from tests.support import live_runs, short_runs


def program(**fields):
  config = short_runs.config(model__name='convnet', **fields)
  return create_setup(check(config)).program()


def test_a_program_depends_only_on_its_computation(monkeypatch):
  before = program(mapper='vmap')
  assert program(mapper='pmap', log__every=7) == before
  monkeypatch.setattr(nn, 'gelu', nn.relu)
  assert program() != before


PATCHED = """
import runpy, sys
import flax.linen as nn

if sys.argv.pop(1) == '1':
  nn.gelu = nn.relu
runpy.run_path('train.py', run_name='__main__')
"""


@pytest.mark.slow
def test_a_process_with_other_code_is_refused_before_the_first_step(
  tmp_path, data_dir
):
  del data_dir  # The processes find it by the environment.
  workdir, port = tmp_path / 'run', live_runs.free_port()
  children = []
  for index in range(2):
    _, _, *flags = live_runs.command('selsync', 1, workdir)
    place = [f'--coordinator=localhost:{port}', '--num_processes=2']
    place += [f'--process_id={index}']
    python = [sys.executable, '-c', PATCHED, str(index)]
    children.append(live_runs.start([*python, *flags, *place]))
  for code, lines in map(live_runs.outcome, children):
    assert code == 1
    assert lines[-1] == (
      'train.py: process 1 has other data or initial weights than process 0, '
      'or would run another training step; give all of them the same code, '
      'files and config'
    )
  assert not workdir.exists()
