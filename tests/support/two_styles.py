"""A config with the same network in flax linen and in flax nnx.

Its initial weights depend on no key, so runs of both start equal.

  python train.py --config=tests/support/two_styles.py --config.model.name=InNnx
"""

from flax import nnx
import flax.linen as nn
import jax.numpy as jnp

import selsync_jax as ss
from selsync_jax.configs import digits


def waves(key, shape, dtype=jnp.float32, out_sharding=None):
  """Initializes without a key."""
  del key, out_sharding
  numbers = jnp.arange(shape[0] * shape[1], dtype=dtype)
  return jnp.sin(numbers**1.5).reshape(shape) / shape[0] ** 0.5


@ss.register_model
class InLinen(nn.Module):
  """A perceptron with batch normalization and dropout."""

  num_classes: int
  num_filters: int = 32
  dropout: float = 0.0

  @nn.compact
  def __call__(self, x, *, train):
    """Scores of images."""
    x = x.reshape(x.shape[0], -1)
    for _ in range(2):
      x = nn.Dense(self.num_filters, kernel_init=waves)(x)
      x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
      x = nn.Dropout(self.dropout, deterministic=not train)(x)
    return nn.Dense(self.num_classes, kernel_init=waves)(x)


@ss.register_model
class InNnx(nnx.Module):
  """The same network, for 8x8 pixels."""

  def __init__(
    self,
    num_classes: int,
    *,
    num_filters: int = 32,
    dropout: float = 0.0,
    rngs: nnx.Rngs,
  ):
    self.hidden = nnx.List(
      nnx.Linear(inputs, num_filters, kernel_init=waves, rngs=rngs)
      for inputs in (64, num_filters)
    )
    self.norms = nnx.List(nnx.BatchNorm(num_filters, rngs=rngs) for _ in 'ab')
    self.dropout = nnx.Dropout(dropout, rngs=rngs)
    self.out = nnx.Linear(
      num_filters, num_classes, kernel_init=waves, rngs=rngs
    )

  def __call__(self, x):
    """Scores of images."""
    x = x.reshape(x.shape[0], -1)
    for linear, norm in zip(self.hidden, self.norms, strict=True):
      x = self.dropout(nnx.relu(norm(linear(x))))
    return self.out(x)


def get_config(method='selsync'):
  """The digits, with one of the two models."""
  config = digits.get_config(method)
  config.model.update(name='InNnx', num_filters=32, dropout=0.0)
  return config
