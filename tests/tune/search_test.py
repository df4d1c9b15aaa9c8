"""The list of the trials of a search."""

import pathlib

import pytest

from selsync_jax.config import ConfigError
from selsync_jax.configs import digits
from selsync_jax.runs.history import Trial
from selsync_jax.tune.choices import Range
from selsync_jax.tune.search import listed
from selsync_jax.tune.space import Space

OWN = {'rate': 0.1, 'period': 8, 'wire': None}
SPACE = Space(
  {
    'local_sgd': {'rate': Range(0.01, 10.0), 'wire': ('own', 'int8')},
    'diloco': {'period': Range(5, 7)},
  },
  {'local_sgd': OWN, 'diloco': OWN},
)
FIXED = [(method, {}) for method in SPACE.choices]


def trials(count, seed=1, space=SPACE, fixed=FIXED, refused=None):
  def load(method, fields):
    if refused in (method, *fields.values()):
      raise ConfigError('unlucky')

  def make(method, fields):
    name = '-'.join([method, *(f'{k}{v}' for k, v in fields.items())])
    config = digits.get_config()
    return Trial(name, 0.1, 0, pathlib.Path(name), [], config)

  found = listed(space, fixed, seed, count, load, make)
  return [(result.method, {**result.fields}) for result in found]


def test_fixed_trials_come_first_and_the_seed_decides_the_others():
  many = trials(12)
  assert many[:2] == FIXED and len(many) == 12
  assert trials(5) == many[:5]  # More trials continue a search.
  assert trials(12, seed=2) != many
  assert {method for method, _ in many[2:]} == {*SPACE.choices}


@pytest.mark.parametrize('refused', [None, 6])
def test_refused_and_repeated_settings_do_not_count(refused):
  space = SPACE._replace(choices={'diloco': SPACE.choices['diloco']})
  found = trials(100, space=space, fixed=[('diloco', {})] * 2, refused=refused)
  periods = {5, 6, 7} - {refused}
  assert found[0] == ('diloco', {}) and len(found) == 1 + len(periods)
  assert {fields['period'] for _, fields in found[1:]} == periods
