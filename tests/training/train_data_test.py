"""One epoch of every data set by train.py: its real code, the tests' data."""

import contextlib
import json
import unittest.mock

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.testing import test_utils

from selsync_jax.cluster import processes as cluster
from selsync_jax.commands import train
from tests.support import live_runs

# ml_collections loads configs by it.
pytestmark = pytest.mark.filterwarnings('ignore:the load_module')


@pytest.fixture
def run(tmp_path, monkeypatch):
  """`run(*flags)`: train.py with two workers, in this process."""
  # JAX already runs in this process, so it cannot join another cluster.
  alone = cluster.Cluster(0, 1, None)
  monkeypatch.setattr(cluster, 'join', lambda *_, **__: alone)

  def run(*arguments):
    flags = [
      f'--config={live_runs.ROOT}/configs/digits.py',
      '--noreport',
      '--config.mapper=vmap',
      '--config.workers=2',
      '--config.epochs=1.0',
      '--config.schedule.warmup_epochs=0.0',
      '--config.model.name=perceptron',
      f'--workdir={tmp_path}',
      *arguments,
    ]
    train.main(flags)
    summary, data = (
      json.loads((tmp_path / f'{name}.json').read_text())
      for name in ('summary', 'data')
    )
    return summary, live_runs.rows(tmp_path), data

  return run


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cifar10', 'cifar100'])
def test_an_epoch_of_cifar(name, run):
  with tfds.testing.mock_data(num_examples=48):
    summary, rows, data = run(
      f'--config.data.name={name}',
      '--config.model.num_filters=4',
      '--config.batch_size=8',
    )
  assert [row['samples'] for row in rows] == [16, 32, 48]
  assert summary['test_loss'] > 0 and summary['validation_loss'] > 0
  assert data['examples'] == {'train': 48, 'validation': 48, 'test': 48}
  assert data['chunks'] == [24, 24]
  assert [sum(worker) for worker in data['labels']] == [24, 24]


@pytest.mark.slow
def test_an_epoch_of_imagenet(run, archives_dir, monkeypatch):
  # The archive's folder exists; mocking it would hide, from all threads, files
  # that a checkpoint is writing.
  no_mock = contextlib.nullcontext(unittest.mock.Mock())
  monkeypatch.setattr(test_utils, 'MockFs', lambda: no_mock)
  # TFDS's random photographs, in the number that the archive's metadata state.
  with tfds.testing.mock_data(num_examples=204, data_dir=archives_dir):
    summary, rows, data = run(
      '--config.data.name=imagenet2012',
      '--config.data.image_size=16',
      '--config.data.window=32',
      '--config.model.num_filters=4',
      '--config.batch_size=40',
      '--config.eval.batch_size=4',
    )
  assert [row['samples'] for row in rows] == [66, 134, 202]
  assert summary['test_loss'] > 0 and summary['validation_loss'] > 0
  assert data['examples'] == {'train': 202, 'validation': 2, 'test': 12}
  assert data['labels'] is None


@pytest.mark.slow
def test_an_epoch_of_wikitext(run, archives_dir):
  summary, rows, data = run(
    '--config.data.name=wikitext103',
    '--config.data.bptt=7',
    f'--config.data.dir={archives_dir}',
    '--config.batch_size=4',
    '--config.model.name=bigram',
    '--config.model.num_filters=None',
    '--config.optimizer.learning_rate=2.0',
  )
  tokens = 60 * 14
  assert summary['samples'] == (tokens - 1) // 7
  assert rows[-1]['loss'] < rows[0]['loss'] / 2
  assert summary['test_loss'] > 0 and summary['validation_loss'] > 0
  assert data['labels'] is None


@pytest.mark.slow
def test_an_epoch_of_one_label_a_worker_with_injection(run, data_dir):
  summary, _, data = run(
    f'--config.data.dir={data_dir}',
    '--config.workers=10',
    '--config.data.partition=by_label',
    '--config.data.labels_per_worker=1',
    '--config.data.injection.alpha=0.5',
    '--config.data.injection.beta=0.5',
    '--config.model.num_filters=4',
  )
  assert [sum(c > 0 for c in worker) for worker in data['labels']] == [1] * 10
  # 22 of 68 bytes a step go to 9 of 10 workers.
  assert summary['injection_bytes'] == round(summary['steps'] * 22 * 0.9 * 68)
