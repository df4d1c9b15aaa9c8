"""A small convolutional network for small images.

The activation is smooth (GELU). With ReLU, rounding could switch a unit on or
off; with GELU, runs that sum in a different order (`pmap` and `vmap`, one
process and several) stay close to each other.
"""

import flax.linen as nn
from jaxtyping import Array, Float

from selsync_jax.models.fields import DType
from selsync_jax.models.fields import Width


class ConvNet(nn.Module):
  """Two 3x3 convolutions, 2x2 pooling and one hidden dense layer.

  Attributes:
    num_classes: the size of the output.
    num_filters: the first convolution's filters. The second has twice as many,
      and the hidden layer has four times as many features.
    dtype: the computation's dtype; parameters are float32.
  """

  num_classes: int
  num_filters: Width = 32
  dtype: DType = 'float32'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch height width channels'], *, train: bool
  ) -> Float[Array, 'batch classes']:
    del train
    x = nn.gelu(nn.Conv(self.num_filters, (3, 3), dtype=self.dtype)(x))
    x = nn.gelu(nn.Conv(2 * self.num_filters, (3, 3), dtype=self.dtype)(x))
    x = nn.max_pool(x, (2, 2), strides=(2, 2))
    x = x.reshape(x.shape[0], -1)
    x = nn.gelu(nn.Dense(4 * self.num_filters, dtype=self.dtype)(x))
    return nn.Dense(self.num_classes, dtype=self.dtype)(x)
