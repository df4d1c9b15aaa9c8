"""Networks without residual connections: convolutions, then dense layers.

References:
  Krizhevsky, `One weird trick for parallelizing convolutional neural networks`,
  2014: AlexNet, as in torchvision.
  Simonyan and Zisserman, `Very Deep Convolutional Networks for Large-Scale
  Image Recognition`, ICLR 2015: VGG, configuration A.
"""

import flax.linen as nn
from jaxtyping import Array, Float

from selsync_jax.config import Share
from selsync_jax.models.convolution import adaptive_avg_pool
from selsync_jax.models.convolution import batch_norm
from selsync_jax.models.convolution import conv
from selsync_jax.models.fields import DType
from selsync_jax.models.fields import MlpDim
from selsync_jax.models.fields import Size
from selsync_jax.models.fields import Width

HE = nn.initializers.he_normal()


class AlexNet(nn.Module):
  """Five convolutions and three dense layers.

  Attributes:
    num_classes: the size of the output.
    num_filters: the first convolution's filters; the others have 3, 6, 4 and 4
      times as many.
    mlp_dim: the width of the two hidden dense layers.
    pool_size: the side of the last feature map, after adaptive average pooling.
    dropout: the dropout rate before each hidden dense layer.
    dtype: the computation's dtype; parameters are float32.
  """

  num_classes: int
  num_filters: Width = 64
  mlp_dim: MlpDim = 4096
  pool_size: Size = 6
  dropout: Share = 0.5
  dtype: DType = 'float32'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch height width channels'], *, train: bool
  ) -> Float[Array, 'batch classes']:
    # Multiple of num_filters, kernel size, stride, padding, whether to pool.
    for ratio, kernel_size, stride, padding, pool in (
      (1, 11, 4, 2, True),
      (3, 5, 1, 2, True),
      (6, 3, 1, 1, False),
      (4, 3, 1, 1, False),
      (4, 3, 1, 1, True),
    ):
      x = conv(
        ratio * self.num_filters,
        kernel_size,
        stride,
        padding=padding,
        use_bias=True,
        dtype=self.dtype,
      )(x)
      x = nn.relu(x)
      x = nn.max_pool(x, (3, 3), (2, 2)) if pool else x
    x = adaptive_avg_pool(x, self.pool_size).reshape(x.shape[0], -1)
    for _ in range(2):
      x = nn.Dropout(self.dropout, deterministic=not train)(x)
      x = nn.relu(nn.Dense(self.mlp_dim, kernel_init=HE, dtype=self.dtype)(x))
    return nn.Dense(self.num_classes, dtype=self.dtype)(x)


class VGG11(nn.Module):
  """Eight 3x3 convolutions and three dense layers.

  Attributes:
    num_classes: the size of the output.
    batch_norm: whether batch normalization follows every convolution.
    num_filters: the first convolution's filters; the last has 8 times as many.
    mlp_dim: the width of the two hidden dense layers.
    pool_size: the side of the last feature map, after adaptive average pooling.
    dropout: the dropout rate after each hidden dense layer.
    dtype: the computation's dtype; parameters are float32.
  """

  num_classes: int
  batch_norm: bool = False
  num_filters: Width = 64
  mlp_dim: MlpDim = 4096
  pool_size: Size = 7
  dropout: Share = 0.5
  dtype: DType = 'float32'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch height width channels'], *, train: bool
  ) -> Float[Array, 'batch classes']:
    # Multiples of num_filters in each stage; pooling ends a stage.
    for stage in ((1,), (2,), (4, 4), (8, 8), (8, 8)):
      for ratio in stage:
        features = ratio * self.num_filters
        x = conv(features, 3, use_bias=True, dtype=self.dtype)(x)
        if self.batch_norm:
          x = batch_norm(train=train, dtype=self.dtype)(x)
        x = nn.relu(x)
      x = nn.max_pool(x, (2, 2), (2, 2))
    x = adaptive_avg_pool(x, self.pool_size).reshape(x.shape[0], -1)
    for _ in range(2):
      x = nn.relu(nn.Dense(self.mlp_dim, kernel_init=HE, dtype=self.dtype)(x))
      x = nn.Dropout(self.dropout, deterministic=not train)(x)
    return nn.Dense(self.num_classes, dtype=self.dtype)(x)
