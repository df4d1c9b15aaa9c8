"""Models, shapes and optimizers to measure, with random batches.

Models match the configs; batches are sizes for one large accelerator.
This needs neither a data set nor the packages that read one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
import optax

from selsync_jax import models, optimizers

# Labels are random, so a step should change little.
SGD = dict(name='sgd', learning_rate=1e-6, momentum=0.9, weight_decay=1e-4)
ADAM = dict(name='adam', learning_rate=1e-6)
ADAMW = dict(name='adamw', learning_rate=1e-6, b2=0.95, weight_decay=0.1)

TOKENS = 1024  # In a decoder's segment.
# Vocabulary, layers, width, heads, and width of the gated layer.
SIZES = {
  '10M': (10_240, 6, 256, 4, 688),
  '124M': (25_600, 12, 768, 12, 2048),
  '350M': (25_600, 24, 1024, 16, 2736),
  '1.3B': (25_600, 24, 2048, 16, 5464),
}
_TINY = dict(num_filters=2, depth=18, num_layers=1)
_TINY |= dict(embed_dim=16, num_heads=2, mlp_dim=16)


class Workload(NamedTuple):
  """A workload to measure.

  Attributes:
    model: the model's name and fields, like in `config.model`.
    outputs: number of classes, or the size of the vocabulary.
    shape: shape of an example: an image, or a segment of tokens.
    optimizer: fields of the optimizer, like in `config.optimizer`.
    examples: size of a batch that fits on a large accelerator.
  """

  model: Mapping[str, Any]
  outputs: int
  shape: tuple[int, ...]
  optimizer: Mapping[str, Any]
  examples: int

  @property
  def is_text(self) -> bool:
    """Whether an example is a segment of tokens."""
    return len(self.shape) == 1

  @property
  def units(self) -> int:
    """Tokens or images of an example."""
    return self.shape[0] if self.is_text else 1

  def tiny(self) -> 'Workload':
    """The same workload as small as possible, for a CPU."""
    return Workload(
      {name: _TINY.get(name, value) for name, value in self.model.items()},
      outputs=32,
      shape=(8,) if self.is_text else (64, 64, 3),
      optimizer=self.optimizer,
      examples=2,
    )

  def create_model(self, dtype: str, **fields: Any) -> nn.Module:
    """The model, with other fields replaced."""
    fields = {**self.model, 'dtype': dtype, **fields}
    return models.create_model(num_outputs=self.outputs, **fields)

  def create_optimizer(self) -> optax.GradientTransformation:
    """The optimizer."""
    return optimizers.create_optimizer(**self.optimizer)

  def examples_of(self, size: int) -> dict[str, np.ndarray]:
    """Random examples."""
    rng = np.random.default_rng(0)

    def integers(*shape):
      return rng.integers(self.outputs, size=shape, dtype=np.int32)

    if self.is_text:
      return {
        'inputs': integers(size, *self.shape),
        'targets': integers(size, *self.shape),
      }
    image = rng.integers(256, size=(size, *self.shape), dtype=np.uint8)
    return {'image': image, 'label': integers(size)}

  def batch_of(self, size: int) -> dict[str, np.ndarray]:
    """One worker's batch of random examples."""
    return self.examples_of(size) | {'mask': np.ones(size, bool)}


def decoder(size: str, examples: int) -> Workload:
  """A decoder with the number of parameters in its name."""
  outputs, num_layers, embed_dim, num_heads, mlp_dim = SIZES[size]
  model = dict(
    name='decoder',
    num_layers=num_layers,
    embed_dim=embed_dim,
    num_heads=num_heads,
    mlp_dim=mlp_dim,
  )
  return Workload(model, outputs, (TOKENS,), ADAMW, examples)


# The most important first.
WORKLOADS = {
  'ResNet-50': Workload(
    dict(name='resnet', depth=50, stem='imagenet', num_filters=64),
    *(1000, (224, 224, 3), SGD, 256),
  ),
  'decoder 350M': decoder('350M', 16),
  'decoder 124M': decoder('124M', 32),
  'decoder 10M': decoder('10M', 64),
  'ResNet-101': Workload(
    dict(name='resnet', depth=101, stem='cifar', num_filters=64),
    *(10, (32, 32, 3), SGD, 512),
  ),
  'VGG-11': Workload(
    dict(name='vgg11', num_filters=64, mlp_dim=4096),
    *(100, (32, 32, 3), SGD, 1024),
  ),
  'AlexNet': Workload(
    dict(name='alexnet', num_filters=64, mlp_dim=4096),
    *(1000, (224, 224, 3), ADAM, 512),
  ),
  'Transformer': Workload(
    dict(
      name='transformer',
      num_layers=2,
      embed_dim=200,
      num_heads=2,
      mlp_dim=200,
      dropout=0.2,
    ),
    *(267_735, (35,), SGD, 64),
  ),
}
