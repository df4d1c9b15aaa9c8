"""Inputs of a batch, prepared on the device."""

import jax
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from selsync_jax.data import from_arrays
from selsync_jax.models import tasks
from selsync_jax.training.problem import create_problem
from selsync_jax.training.settings import check
from tests.support.batches import same_splits


def own(image, **functions):
  split = {'image': image, 'label': np.arange(len(image)) % 2}
  return from_arrays(
    **same_splits(split), task='classification', num_classes=2, **functions
  )


def test_images_that_travel_as_bytes_are_learned_from_as_scaled_ones():
  image = np.random.default_rng(0).integers(0, 256, (8, 4, 4, 1), np.uint8)

  def scaled(batch):
    return batch | {'image': batch['image'] / np.float32(255)}

  @ss.register_dataset
  def on_host():
    return own(image, transform=scaled)

  @ss.register_dataset
  def on_device():
    return own(image, prepare=lambda image: image / 255)

  config, losses, dtypes = config_file.load('digits', ()), [], []
  config.batch_size = 2
  for name in ('on_host', 'on_device'):
    config.data.name = name
    problem = create_problem(check(config))
    loss = tasks.train_loss(problem.model, problem.task)
    variables, key = problem.init({}), jax.random.key(0)
    losses.append(loss(*variables, problem.data.example, key)[0])
    dtypes.append(problem.data.example['image'].dtype)
  np.testing.assert_allclose(*losses, rtol=1e-6)
  assert dtypes == [np.float32, np.uint8]


def test_an_error_in_what_the_device_prepares_names_the_data():
  @ss.register_dataset
  def wrong():
    return own(np.ones((8, 2)), prepare=lambda image: image @ image)

  config = config_file.load('digits', ())
  config.batch_size = 2
  config.data.name = 'wrong'
  with pytest.raises(ConfigError, match=r'^config\.data: .*prepare_test\.py'):
    create_problem(check(config))
