"""A custom model and data set: points on two rings, to be told apart.

python train.py --config=docs/recipes/rings.py
"""

import flax.linen as nn
import numpy as np

import selsync_jax as ss
from selsync_jax import data
from selsync_jax.configs import base


@ss.register_dataset
def rings(*, noise: float = 0.1):
  """Returns points in the plane; the label is the index of their ring."""
  rng = np.random.default_rng(0)

  def points(count):
    label = rng.integers(0, 2, count)
    radius = 1 + label + noise * rng.normal(size=count)
    angle = rng.uniform(0, 2 * np.pi, count)
    point = radius * np.array([np.cos(angle), np.sin(angle)])
    return {'image': point.T, 'label': label}

  return data.from_arrays(
    train=points(4000),
    validation=points(500),
    test=points(1000),
    task='classification',
    num_classes=2,
  )


@ss.register_model
class TwoLayers(nn.Module):
  """A network with one hidden layer."""

  num_classes: int
  width: int = 32

  @nn.compact
  def __call__(self, x, *, train):
    """Returns the scores of points [batch, 2]."""
    return nn.Dense(self.num_classes)(nn.tanh(nn.Dense(self.width)(x)))


def get_config(method='selsync'):
  """Returns ten epochs on four workers."""
  config = base.get_config(method)
  config.epochs = 10.0
  config.data.update(name='rings', noise=0.1)
  config.model.update(name='TwoLayers', width=32)
  config.optimizer.learning_rate = 0.3
  return config
