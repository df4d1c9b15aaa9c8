"""Each workload's smoke run: it trains, and goes on where it stopped."""

import importlib
import json

import numpy as np
import pytest

from configs import base
from selsync_jax import job as job_lib
from selsync_jax import trainer
from selsync_jax.config import ConfigError

WORKLOADS = [
  'cifar10_resnet101',
  'cifar100_vgg11',
  'imagenet_alexnet',
  'wikitext103_transformer',
  'stdlib_gpt',
]


def get_config(workload, argument):
  return importlib.import_module(f'configs.{workload}').get_config(argument)


def rows(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


# Steps of which the last ten have a mean loss so many times below the first
# step's; then it is stopped, and taken up for some more.
FALLS = {
  'cifar10_resnet101': (60, 4.0),
  'cifar100_vgg11': (60, 3.0),
  'imagenet_alexnet': (80, 1.3),
  'wikitext103_transformer': (100, 1.8),
  'stdlib_gpt': (100, 2.0),
}


@pytest.mark.parametrize('workload', WORKLOADS)
def test_a_smoke_run_learns_and_resumes(workload, tmp_path, data_dir):
  steps, factor = FALLS[workload]
  config = get_config(workload, 'selsync,smoke')
  config.data.dir = data_dir
  config.eval.every_epochs = 1e3  # At the end alone.
  config.steps = steps
  trainer.train_and_evaluate(config, tmp_path)
  loss = [row['loss'] for row in rows(tmp_path)]
  assert np.mean(loss[-10:]) < loss[0] / factor
  config.steps = steps + 10
  summary = trainer.train_and_evaluate(config, tmp_path)
  assert summary['steps'] == steps + 10
  more = rows(tmp_path)
  assert [row['step'] for row in more] == list(range(1, steps + 11))
  assert [row['loss'] for row in more[:steps]] == loss
  # No start anew: the first step after the break is where the last was.
  assert more[steps]['loss'] < 1.5 * np.mean(loss[-10:])
  score = 'perplexity' if config.data.bptt else 'top5'
  assert np.isfinite(summary[f'test_{score}'])
