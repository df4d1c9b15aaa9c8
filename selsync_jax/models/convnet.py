"""A small convolutional network for small images.

Its activation is smooth (GELU): rounding can not flip a gate, so runs that add
up in another order (`pmap` and `vmap`, one process and several) stay close.
"""

import flax.linen as nn
from jaxtyping import Array, Float


class ConvNet(nn.Module):
  """Two 3x3 convolutions, one halving, one hidden layer.

  Attributes:
    classes: width of the output.
    width: channels of the first convolution; the second has twice, the hidden
      layer four times as many.
    dtype: of the computation; parameters are float32.
  """

  classes: int
  width: int = 32
  dtype: str = 'float32'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch height width channels'], *, train: bool
  ) -> Float[Array, 'batch classes']:
    del train
    x = nn.gelu(nn.Conv(self.width, (3, 3), dtype=self.dtype)(x))
    x = nn.gelu(nn.Conv(2 * self.width, (3, 3), dtype=self.dtype)(x))
    x = nn.max_pool(x, (2, 2), strides=(2, 2))
    x = x.reshape(x.shape[0], -1)
    x = nn.gelu(nn.Dense(4 * self.width, dtype=self.dtype)(x))
    return nn.Dense(self.classes, dtype=self.dtype)(x)
