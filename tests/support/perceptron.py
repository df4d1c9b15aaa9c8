"""A model for tests that are about anything else."""

import contextlib
from unittest import mock

import flax.linen as nn

from selsync_jax import models


class Perceptron(nn.Module):
  """One hidden layer, which XLA compiles in half the time of a convolution."""

  num_classes: int
  num_filters: int  # The default config has this field.
  dtype: str

  @nn.compact
  def __call__(self, x, *, train):
    del train
    x = nn.relu(nn.Dense(self.num_filters)(x.reshape(len(x), -1)))
    return nn.Dense(self.num_classes)(x)


@contextlib.contextmanager
def registered():
  """While this is entered, `config.model.name` may be 'perceptron'."""
  with mock.patch.dict(models.MODELS, perceptron=Perceptron):
    yield
