"""The networks before residuals: convolutions, then three dense layers.

References:
  Krizhevsky, `One weird trick for parallelizing convolutional neural networks`,
  2014: AlexNet as torchvision has it.
  Simonyan and Zisserman, `Very Deep Convolutional Networks for Large-Scale
  Image Recognition`, ICLR 2015: VGG, configuration A.
"""

import flax.linen as nn
from jaxtyping import Array, Float

from selsync_jax.models.convolution import adaptive_mean
from selsync_jax.models.convolution import conv
from selsync_jax.models.convolution import norm

HE = nn.initializers.he_normal()


class AlexNet(nn.Module):
  """Five convolutions and three dense layers.

  Attributes:
    classes: width of the output.
    width: channels of the first convolution; the others keep their ratios.
    hidden: width of the two dense layers before the last.
    pool: side of the last feature map, reached by means or repetition.
    dropout: rate before each hidden dense layer.
    dtype: of the computation; parameters are float32.
  """

  classes: int
  width: int = 64
  hidden: int = 4096
  pool: int = 6
  dropout: float = 0.5
  dtype: str = 'float32'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch height width channels'], *, train: bool
  ) -> Float[Array, 'batch classes']:
    # Channels over those of the first, side, stride, padding, pooled or not.
    for ratio, side, stride, padding, pools in (
      (1, 11, 4, 2, True),
      (3, 5, 1, 2, True),
      (6, 3, 1, 1, False),
      (4, 3, 1, 1, False),
      (4, 3, 1, 1, True),
    ):
      width = ratio * self.width
      x = nn.relu(
        conv(width, side, stride, padding=padding, bias=True, dtype=self.dtype)(
          x
        )
      )
      x = nn.max_pool(x, (3, 3), (2, 2)) if pools else x
    x = adaptive_mean(x, self.pool).reshape(x.shape[0], -1)
    for _ in range(2):
      x = nn.Dropout(self.dropout, deterministic=not train)(x)
      x = nn.relu(nn.Dense(self.hidden, kernel_init=HE, dtype=self.dtype)(x))
    return nn.Dense(self.classes, dtype=self.dtype)(x)


class VGG11(nn.Module):
  """Eight 3x3 convolutions and three dense layers.

  Attributes:
    classes: width of the output.
    norm: batch normalisation after every convolution.
    width: channels of the first convolution; the last has eight times as many.
    hidden: width of the two dense layers before the last.
    pool: side of the last feature map, reached by means or repetition.
    dropout: rate after each hidden dense layer.
    dtype: of the computation; parameters are float32.
  """

  classes: int
  norm: bool = False
  width: int = 64
  hidden: int = 4096
  pool: int = 7
  dropout: float = 0.5
  dtype: str = 'float32'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch height width channels'], *, train: bool
  ) -> Float[Array, 'batch classes']:
    # Channels over those of the first, stage by stage; each ends in pooling.
    for stage in ((1,), (2,), (4, 4), (8, 8), (8, 8)):
      for ratio in stage:
        x = conv(ratio * self.width, 3, bias=True, dtype=self.dtype)(x)
        if self.norm:
          x = norm(train=train, dtype=self.dtype)(x)
        x = nn.relu(x)
      x = nn.max_pool(x, (2, 2), (2, 2))
    x = adaptive_mean(x, self.pool).reshape(x.shape[0], -1)
    for _ in range(2):
      x = nn.relu(nn.Dense(self.hidden, kernel_init=HE, dtype=self.dtype)(x))
      x = nn.Dropout(self.dropout, deterministic=not train)(x)
    return nn.Dense(self.classes, dtype=self.dtype)(x)
