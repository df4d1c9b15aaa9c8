"""Runs whose data or code change between two sessions."""

import json
import shutil

import flax.linen as nn
import numpy as np
import pytest

from selsync_jax import data, models
from selsync_jax.__main__ import run_command
from selsync_jax.config import ConfigError
from selsync_jax.configs import digits
from selsync_jax.data.sources import DATASETS
from selsync_jax.runs import fingerprint, provenance
from selsync_jax.simulate.run import simulate
from selsync_jax.training.train import train_and_evaluate
from tests.support.live_runs import contents
from tests.support.marks import slow
from tests.support.session import make_once


def register(examples=96, seed=0, activation=nn.tanh, scale=1.0):
  """Registers a user's data set and model."""
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
  changed.data.backend = 'numpy'
  changed.update(steps=steps, mapper='vmap', batch_size=4)
  return changed


def train(workdir, steps, **options):
  return train_and_evaluate(config(steps), workdir, **options)


@pytest.fixture
def workdir(tmp_path):
  """A copy of a run of two steps."""
  register()
  made = make_once('changed', lambda folder: train(folder, 2))
  return shutil.copytree(made, tmp_path / 'run')


CHANGES = {
  'fewer examples': ({'examples': 64}, 'data.train.examples was 96, now 64'),
  'another seed': ({'seed': 1}, 'data.train.content was '),
  'another activation': ({'activation': nn.relu}, 'model.program was '),
  'another constant': ({'scale': 2.0}, 'model.program was '),
}


@pytest.mark.parametrize('change', CHANGES)
def test_a_change_behind_a_name_is_refused(change, workdir, capsys):
  changed, line = CHANGES[change]
  before = contents(workdir)
  register(**changed)
  with pytest.raises(ConfigError, match='other data, code or initial') as error:
    train(workdir, 4)
  assert line in str(error.value)
  with pytest.raises(SystemExit):
    run_command(['evaluate', str(workdir)])
  assert line in capsys.readouterr().err
  assert contents(workdir) == before


@pytest.mark.parametrize('change', ['another seed', slow('another constant')])
def test_a_change_that_is_accepted_is_the_runs_from_then_on(change, workdir):
  changed, line = CHANGES[change]
  train(workdir, 3)  # Nothing has changed.
  register(**changed)
  run_command(['evaluate', str(workdir), '--accept_changes'])
  assert train(workdir, 4, accept_changes=True)['steps'] == 4
  *others, last = provenance.sessions(workdir)
  assert [line in change for change in last['changes']].count(True) == 1
  assert not any('changes' in session for session in others)
  train(workdir, 5)


def record(workdir, change):
  """Changes the fingerprint of a run like another version would."""
  recorded = json.loads((workdir / fingerprint.FINGERPRINT).read_text())
  del recorded['crc32']
  change(recorded)
  (workdir / fingerprint.FINGERPRINT).unlink()
  fingerprint.write(workdir, recorded)


def test_a_model_that_another_version_traced_is_not_compared(workdir):
  def change(recorded):
    versions = {'jax': '0.1', 'flax': '0'}
    recorded['model'] = {'program': '0', 'versions': versions}
    del recorded['data']['train']['labels']  # That version recorded none.

  record(workdir, change)
  assert train(workdir, 3)['steps'] == 3


@pytest.mark.parametrize(
  'damage',
  [
    *(slow(lambda whole, text=text: text) for text in ('{', '[]', '')),
    lambda whole: whole.replace('"examples": ', '"examples": 1'),
  ],
)
def test_a_damaged_fingerprint_is_written_again(damage, workdir, capsys):
  path = workdir / fingerprint.FINGERPRINT
  whole = path.read_text()
  path.write_text(damage(whole))
  run_command(['evaluate', str(workdir)])
  assert f'{path} is damaged' in capsys.readouterr().err
  train(workdir, 3)
  assert f'{path} is damaged' in capsys.readouterr().out
  assert path.read_text() == whole


@pytest.mark.parametrize('method', ['asp', 'bsp'])
def test_another_trace_is_refused(method, tmp_path):
  register()
  trace = tmp_path / 'trace.csv'
  trace.write_text('1,1,1,1\n' * 99)
  changed = config(2)
  changed.sync = digits.get_config(method).sync
  changed.virtual_cluster.update(compute='trace', trace=str(trace))
  simulate(changed, tmp_path / 'run')
  trace = trace.rename(tmp_path / 'moved.csv')  # Only its content counts.
  trace.write_text('1,1,1,2\n' * 99)
  changed.virtual_cluster.trace, changed.steps = str(trace), 3
  with pytest.raises(ConfigError, match=r'other data.* trace was'):
    simulate(changed, tmp_path / 'run')
  if method == 'bsp':
    simulate(changed, tmp_path / 'run', accept_changes=True)
  else:
    with pytest.raises(ConfigError, match='asp cannot resume with another'):
      simulate(changed, tmp_path / 'run', accept_changes=True)
