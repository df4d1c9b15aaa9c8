"""Old names end in one line with the new name."""

import json

import pytest

import selsync_jax as ss
from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from selsync_jax.runs import records, workdir
from selsync_jax.training import settings


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


def test_a_run_of_old_names_is_refused_in_one_line(tmp_path):
  config = json.loads(config_file.load('digits', []).to_json())
  old = {**config, 'check_replicas': config['check_replicas_every']}
  del old['check_replicas_every']
  records.write_config(tmp_path, old)
  line = (
    r'^--workdir=\S+ holds .*: check_replicas was \d+, now None; choose .*$'
  )
  with (
    pytest.raises(ConfigError, match=line),
    workdir.opened(tmp_path, config, restart=False),
  ):
    pass
  with pytest.raises(ConfigError, match='check_replicas=100: there is no such'):
    settings.recorded(tmp_path)
