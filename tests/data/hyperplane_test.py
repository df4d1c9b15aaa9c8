"""Hyperplane regression: the points, and a model that finds the plane."""

import numpy as np
import pytest

from selsync_jax.configs import hyperplane as config_file
from selsync_jax.data.sources.hyperplane import hyperplane, NOISE
from selsync_jax.training.train import train_and_evaluate


def test_targets_are_a_plane_with_noise_over_all_splits():
  splits = hyperplane(dimensions=32).splits
  train, test = splits['train'], splits['test']
  weights, *_ = np.linalg.lstsq(train['features'], train['target'])
  residual = test['target'] - test['features'] @ weights
  assert residual.std() == pytest.approx(NOISE, rel=0.05)
  assert train['target'].std() == pytest.approx(1, rel=0.3)


def test_training_finds_the_plane(tmp_path):
  config = config_file.get_config('bsp')
  config.update(workers=2, mapper='vmap', steps=60, batch_size=64)
  config.data.dimensions = 16
  summary = train_and_evaluate(config, tmp_path / 'run')
  assert summary['test_loss'] == pytest.approx(NOISE**2, rel=0.2)
