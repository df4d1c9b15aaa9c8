"""Models for tests whose subject is not the model."""

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


class Normalized(nn.Module):
  """A perceptron with batch normalization, which has batch statistics."""

  num_classes: int
  num_filters: int = 8
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x, *, train):
    x = nn.Dense(self.num_filters)(x.reshape(len(x), -1))
    x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
    return nn.Dense(self.num_classes)(nn.relu(x))


@contextlib.contextmanager
def registered():
  """Registers both models in lower case inside this context."""
  own = {'perceptron': Perceptron, 'normalized': Normalized}
  with mock.patch.dict(models.MODELS, own):
    yield
