"""Configs that are refused, in `refusals.txt`: DOOR FILE FIELDS => LINE.

The doors are the checks of three commands. `...` in a line stands for any text.
"""

import pathlib
import shlex

import pytest

from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from selsync_jax.simulate import run
from selsync_jax.training import setup
from tests.support.lines import raises

ROWS = pathlib.Path(__file__).with_name('refusals.txt').read_text().splitlines()
CASES = [row.split(' => ') for row in ROWS]
DOORS = {
  'compare': setup.draft,
  'simulate': run.refuse,
  'train': setup.create_setup,
}


@pytest.mark.parametrize(
  'given, line', CASES, ids=[given for given, _ in CASES]
)
def test_a_mistake_in_a_config_is_one_line(given, line):
  door, file, *fields = shlex.split(given)
  own = config_file.SIMULATED if door == 'simulate' else ()
  flags = [f'--config.{field}' for field in ('data.backend=numpy', *fields)]
  with raises(ConfigError, line):
    DOORS[door](config_file.settings(file, [*own, *flags]))
