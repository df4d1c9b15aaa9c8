"""Config files and fields, refused in one line or accepted."""

import importlib
import math
import sys

import hypothesis
from hypothesis import strategies as st
import pytest

from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from tests.support import hostile_values, short_runs
from tests.support.lines import raises
from tests.support.session import ROOT

DIGITS = 'configs/digits.py'


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch):
  monkeypatch.chdir(ROOT)


def test_a_bare_name_is_our_own_config_unless_there_is_one_here(
  monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  config = config_file.load('digits_noniid:bsp', ())
  assert (config.workers, config.sync.method) == (10, 'bsp')
  mine = tmp_path / 'configs' / 'digits.py'
  mine.parent.mkdir()
  mine.write_text(
    'from selsync_jax.configs import digits\n\n\ndef get_config():\n'
    '  config = digits.get_config()\n  config.workers = 3\n  return config\n'
  )
  assert config_file.load('digits', ()).workers == 3


@pytest.mark.parametrize('name', hostile_values.FILES)
def test_a_mistake_in_a_config_file_is_one_line_that_names_it(name, tmp_path):
  text, line = hostile_values.FILES[name]
  file = tmp_path / 'mine.py'
  file.write_text(text)
  with raises(ConfigError, f'{file}{line}' if line[0] == ':' else line):
    config_file.load(str(file), ())


def test_a_file_that_is_not_text_is_refused_in_one_line(tmp_path):
  file = tmp_path / 'mine.py'
  file.write_bytes(bytes(range(256)))
  with raises(ConfigError, f'{file}:1: ...: ...'):
    config_file.load(str(file), ())


def test_a_field_is_unset_by_a_flag():
  flags = ['--config.optimizer.momentum=None', '--config.optimizer.name=adamw']
  config = config_file.load(DIGITS, [*hostile_values.QUICK, *flags])
  assert config.optimizer.momentum is None
  create_setup(check(config))


def test_of_several_values_of_a_field_the_last_one_counts():
  fields = ['--config.sync.delta=0.2', '--config.sync.delta=None']
  assert config_file.load(DIGITS, fields).sync.delta is None
  assert config_file.load(DIGITS, fields[::-1]).sync.delta == 0.2


def refusal(flag):
  """The line that refuses a flag; empty if it is accepted."""
  try:
    config_file.load(DIGITS, [*hostile_values.QUICK, flag])
  except ConfigError as error:
    return str(error)
  return ''


def test_every_value_of_every_field_is_accepted_or_refused_in_one_line():
  # A seventh of the values; the fields take turns.
  flags = list(hostile_values.one_field(DIGITS))[::7]
  lines = [refusal(flag) for flag in flags]
  assert 0.7 < sum(map(bool, lines)) / len(lines) < 0.95
  assert not [line for line in lines if '\n' in line or len(line) > 400]


@pytest.mark.slow
@hypothesis.settings(
  max_examples=60, deadline=None, database=None, derandomize=True
)
@hypothesis.given(
  index=st.integers(0, 10**6), value=st.sampled_from(hostile_values.VALUES)
)
def test_a_value_is_refused_in_one_line_or_the_first_step_is_finite(
  index, value
):
  fields = hostile_values.fields(DIGITS)
  flag = f'--config.{fields[index % len(fields)]}={value}'
  if line := refusal(flag):
    assert '\n' not in line
    return
  config = config_file.load(DIGITS, [*hostile_values.QUICK, flag])
  try:
    setup = create_setup(check(config))
  except ConfigError as error:
    line = str(error)
  else:
    (row,) = short_runs.first_steps(setup, 1)
    assert math.isfinite(row['loss'])
  assert '\n' not in line


def test_a_config_file_imports_its_neighbor_from_any_folder(
  tmp_path, monkeypatch
):
  """The neighbor is not another module of that name, and hides no library."""
  for folder, steps in (('one', 1), ('other', 2), ('here', 3)):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / 'neighbor.py').write_text(f'STEPS = {steps}\n')
    (tmp_path / folder / 'ml_collections.py').write_text('ConfigDict = None\n')
    (tmp_path / folder / 'mine.py').write_text(
      'from selsync_jax.configs import digits\nimport ml_collections\n'
      'import neighbor\n\n\ndef get_config():\n'
      '  assert ml_collections.ConfigDict\n  config = digits.get_config()\n'
      '  config.steps = neighbor.STEPS\n  return config\n'
    )
  monkeypatch.chdir(tmp_path / 'here')
  monkeypatch.syspath_prepend(tmp_path / 'here')

  def steps(folder):
    return config_file.load(str(tmp_path / folder / 'mine.py'), ()).steps

  assert [steps('one'), steps('other'), steps('one')] == [1, 2, 1]
  (tmp_path / 'one' / 'neighbor.py').write_text('STEPS = 10\n')
  assert steps('one') == 10


def test_a_library_below_the_folder_of_a_config_is_imported_once(
  tmp_path, monkeypatch
):
  """For example, a virtual environment may lie beside the config."""
  library = tmp_path / 'venv' / 'site-packages'
  library.mkdir(parents=True)
  (library / 'some_library.py').write_text('')
  (tmp_path / 'mine.py').write_text(
    'from selsync_jax.configs import digits\nimport some_library\n\n\n'
    'def get_config():\n  return digits.get_config()\n'
  )
  monkeypatch.syspath_prepend(library)
  config_file.load(str(tmp_path / 'mine.py'), ())
  once = sys.modules['some_library']
  config_file.load(str(tmp_path / 'mine.py'), ())
  assert sys.modules.pop('some_library') is once


def test_a_config_of_ours_hides_no_module_of_the_user(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / 'hyperplane.py').write_text('MINE = True\n')
  config_file.load('digits', ())
  assert importlib.import_module('hyperplane').MINE
  del sys.modules['hyperplane']
