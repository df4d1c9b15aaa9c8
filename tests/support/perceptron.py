"""Models for tests whose subject is not the model."""

import contextlib
from unittest import mock

import flax.linen as nn

from selsync_jax import models


class Perceptron(nn.Module):
  """One hidden layer, which XLA compiles in half the time of a convolution."""

  num_classes: int
  num_filters: int = 8  # The default config has this field.
  dtype: str = 'float32'

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
  momentum: float = 0.9
  dropout: float = 0.0

  @nn.compact
  def __call__(self, x, *, train):
    x = nn.Dense(self.num_filters)(x.reshape(len(x), -1))
    norm = nn.BatchNorm(use_running_average=not train, momentum=self.momentum)
    x = nn.Dropout(self.dropout, deterministic=not train)(nn.relu(norm(x)))
    return nn.Dense(self.num_classes)(x)


class Bigram(nn.Module):
  """The smallest language model: a score for each pair of tokens."""

  num_tokens: int

  @nn.compact
  def __call__(self, x, *, train):
    del train
    return nn.Embed(self.num_tokens, self.num_tokens)(x)


@contextlib.contextmanager
def registered():
  """Registers these models in lower case inside this context."""
  own = {
    each.__name__.lower(): each for each in (Perceptron, Normalized, Bigram)
  }
  with mock.patch.dict(models.MODELS, own):
    yield
