"""Old names end in one line with the new name, and old runs are read."""

import re

import pytest

import selsync_jax as ss
from selsync_jax import renamed
from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from selsync_jax.runs import records


@pytest.mark.parametrize(
  'old, new',
  [
    ('sync.lag=1', 'vote_delay'),
    ('sync.delay.own=0.5', 'keep'),
    ('sync.trigger=at_least_every', 'max_interval'),
    ('check_replicas=5', 'check_replicas_every'),
    ('log.seconds=1', 'print_every_seconds'),
    ('cluster.compute=delays', 'virtual_cluster'),
  ],
)
def test_an_old_flag_names_the_new_one(old, new):
  with pytest.raises(ConfigError) as caught:
    config_file.load('digits', [f'--config.{old}'])
  assert re.search(rf'; \w+ is {new} now(;|$)', str(caught.value))
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'make, error, line',
  [
    (lambda: ss.every_kth, AttributeError, 'every_kth is interleave now'),
    (lambda: ss.moments, AttributeError, 'moments is optimizer_state now'),
    (lambda: ss.selsync(0.3, lag=1), TypeError, 'lag is vote_delay now'),
    (lambda: ss.delayed(ss.mean(), 2, ahead=1.0), TypeError, 'extrapolate now'),
  ],
)
def test_an_old_name_of_python_names_the_new_one(make, error, line):
  with pytest.raises(error, match=line):
    make()


def test_a_run_of_old_names_is_read_under_the_new_ones(tmp_path):
  new = {
    'workers': 4,
    'epochs': 1.0,
    'seed': 0,
    'mapper': 'pmap',
    'check_replicas_every': 100,
    'log': {'print_every_seconds': 30.0, 'every': 1},
    'virtual_cluster': {'compute': 'factors'},
    'sync': {
      'method': 'selsync',
      'vote_delay': 1,
      'delay': {'steps': 3, 'keep': 0.5, 'extrapolate': 0.5, 'mix': 0.0},
      'trigger': {'name': 'min_interval', 'trigger': {'vote_delay': 1}},
      'averager': {'name': 'interleave', 'between': {'delay': {'keep': 1.0}}},
      'optimizer_state': {'name': 'local'},
    },
  }

  def aged(value):
    if not isinstance(value, dict):
      return OLD.get(value, value) if isinstance(value, str) else value
    return {OLD.get(name, name): aged(each) for name, each in value.items()}

  records.write_config(tmp_path, aged(new))
  assert records.read_config(tmp_path) == new
  records.write_config(tmp_path, new)
  assert records.read_config(tmp_path) == new


@pytest.mark.parametrize('method', ['mine', 'selsync_mine'])
def test_a_name_of_a_users_own_method_stays(method, tmp_path):
  own = {
    'workers': 4,
    'seed': 0,
    'mapper': 'pmap',
    'sync': {'method': method, 'lag': 3, 'own': 1, 'local': 2},
  }
  records.write_config(tmp_path, own)
  assert records.read_config(tmp_path) == own


def test_a_config_of_a_users_own_keeps_its_names(tmp_path):
  """A `Recorder` writes its input unchanged."""
  own = {'workers': 4, 'sync': {'method': 'mine'}, 'cluster': 'a100'}
  records.write_config(tmp_path, own)
  assert records.read_config(tmp_path) == own


OLD = {new: old for old, new in renamed.NAMES.items()}
del OLD['optimizer_state']  # The field always had this name.
