"""Runs whose data or code change between two sessions."""

import json

import flax.linen as nn
import numpy as np
import pytest

from selsync_jax import data
from selsync_jax import models
from selsync_jax.__main__ import run_command
from selsync_jax.config import ConfigError
from selsync_jax.configs import digits
from selsync_jax.data.sources import DATASETS
from selsync_jax.runs import fingerprint
from selsync_jax.runs import provenance
from selsync_jax.simulate.run import simulate
from selsync_jax.training.train import train_and_evaluate
from tests.support import own_code


@pytest.fixture(autouse=True)
def forget():
  with own_code.forgotten():
    yield


def register(examples=96, seed=0, activation=nn.tanh, scale=1.0):
  """Registers a data set and a model of a user's."""
  models.MODELS.pop('Small', None)
  DATASETS.pop('dots', None)

  @data.register_dataset
  def dots():
    rng = np.random.default_rng(seed)

    def split(count):
      points = rng.normal(size=(count, 2)).astype(np.float32)
      return {'image': points, 'label': (points[:, 0] > 0).astype(np.int32)}

    return data.from_arrays(
      train=split(examples),
      validation=split(8),
      test=split(8),
      task='classification',
      num_classes=2,
    )

  @models.register_model
  class Small(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, x, train):
      del train
      constant = np.array([[scale, 1.0]], np.float32)
      x = activation(nn.Dense(4)(x * constant))
      return nn.Dense(self.num_outputs)(x)


def config(steps):
  changed = digits.get_config('selsync')
  changed.data.name, changed.model.name = 'dots', 'Small'
  changed.model.num_filters = None
  changed.update(steps=steps, mapper='vmap', batch_size=4)
  return changed


def train(workdir, steps, **options):
  return train_and_evaluate(config(steps), workdir, **options)


def contents(folder):
  return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


CHANGES = {
  'fewer examples': ({'examples': 64}, 'data.train.examples was 96, now 64'),
  'another seed': ({'seed': 1}, 'data.train.content was '),
  'another activation': ({'activation': nn.relu}, 'model.program was '),
  'another constant': ({'scale': 2.0}, 'model.program was '),
}


@pytest.mark.parametrize('change', CHANGES)
def test_a_change_behind_a_name_is_refused_unless_it_is_accepted(
  change, tmp_path, capsys
):
  changed, line = CHANGES[change]
  register()
  train(tmp_path, 2)
  train(tmp_path, 3)  # Nothing has changed.
  before = contents(tmp_path)
  register(**changed)
  with pytest.raises(
    ConfigError, match='other data, model or initial'
  ) as error:
    train(tmp_path, 4)
  assert line in str(error.value)
  with pytest.raises(SystemExit):
    run_command(['evaluate', str(tmp_path)])
  assert line in capsys.readouterr().err
  assert contents(tmp_path) == before
  run_command(['evaluate', str(tmp_path), '--accept_changes'])
  assert train(tmp_path, 4, accept_changes=True)['steps'] == 4
  *others, last = provenance.sessions(tmp_path)
  assert [line in change for change in last['changes']].count(True) == 1
  assert not any('changes' in session for session in others)
  train(tmp_path, 5)  # What was accepted is the run's now.


def test_a_model_that_another_version_traced_is_not_compared(tmp_path):
  register()
  train(tmp_path, 2)
  recorded = json.loads((tmp_path / fingerprint.FINGERPRINT).read_text())
  del recorded['crc32']
  recorded['model'] = {'program': '0', 'versions': {'jax': '0.1', 'flax': '0'}}
  del recorded['data']['train']['labels']  # That version did not record them.
  fingerprint.write(tmp_path, recorded)
  assert train(tmp_path, 3)['steps'] == 3


@pytest.mark.parametrize(
  'damage',
  [
    lambda whole: '{',
    lambda whole: '[]',
    lambda whole: '',
    lambda whole: whole.replace('"examples": ', '"examples": 1'),
  ],
)
def test_a_damaged_fingerprint_is_written_again(damage, tmp_path, capsys):
  register()
  train(tmp_path, 2)
  path = tmp_path / fingerprint.FINGERPRINT
  whole = path.read_text()
  path.write_text(damage(whole))
  run_command(['evaluate', str(tmp_path)])
  assert f'{path} is damaged' in capsys.readouterr().err
  train(tmp_path, 3)
  assert f'{path} is damaged' in capsys.readouterr().out
  assert path.read_text() == whole


@pytest.mark.parametrize('method', ['asp', 'bsp'])
def test_another_trace_is_refused(method, tmp_path):
  register()
  trace = tmp_path / 'trace.csv'
  trace.write_text('1,1,1,1\n' * 99)
  changed = config(2)
  changed.sync = digits.get_config(method).sync
  changed.cluster.update(compute='trace', trace=str(trace))
  simulate(changed, tmp_path / 'run')
  trace.write_text('1,1,1,2\n' * 99)
  changed.steps = 3
  with pytest.raises(ConfigError, match=r'other data.* trace was'):
    simulate(changed, tmp_path / 'run')
  if method == 'bsp':
    simulate(changed, tmp_path / 'run', accept_changes=True)
  else:
    with pytest.raises(ConfigError, match='asp cannot resume with another'):
      simulate(changed, tmp_path / 'run', accept_changes=True)
