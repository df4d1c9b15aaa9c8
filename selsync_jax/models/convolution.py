"""Convolutional networks, with layers as in torchvision; and a linear one.

References:
  Krizhevsky, `One weird trick for parallelizing convolutional neural networks`,
    2014: AlexNet.
  Simonyan and Zisserman, `Very Deep Convolutional Networks for Large-Scale
    Image Recognition`, ICLR 2015: VGG, configuration A.
  He et al., `Deep Residual Learning for Image Recognition`, CVPR 2016: ResNet.
    A bottleneck has its stride in the 3x3 convolution.
  He et al., `Delving Deep into Rectifiers`, ICCV 2015: the initialization.
"""

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from selsync_jax.config import Share
from selsync_jax.models import fields

HE = nn.initializers.he_normal()
HE_FAN_OUT = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')


def conv(
  features: int,
  kernel_size: int,
  stride: int = 1,
  *,
  dtype: str,
  use_bias: bool = False,
  padding: int | None = None,
) -> nn.Conv:
  """Returns a square convolution; `padding` is half the kernel by default."""
  return nn.Conv(
    features,
    (kernel_size, kernel_size),
    stride,
    padding=kernel_size // 2 if padding is None else padding,
    use_bias=use_bias,
    kernel_init=HE_FAN_OUT,
    dtype=dtype,
  )


def batch_norm(*, train: bool, dtype: str) -> nn.BatchNorm:
  """Returns batch normalization, with statistics of this worker's batch."""
  return nn.BatchNorm(
    use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=dtype
  )


def adaptive_avg_pool(
  x: fields.Images, size: int
) -> Float[Array, 'batch {size} {size} channels']:
  """Averages an image of any size over `size` by `size` windows.

  As in PyTorch, window i of n covers the pixels floor(i s / n) to
  ceil((i + 1) s / n) of s. If s < n, pixels are repeated.
  """
  if 0 in x.shape:
    raise ValueError(f'the images are too small: features have shape {x.shape}')

  def windows(pixels):
    pixel, i = np.arange(pixels), np.arange(size)[:, None]
    start, stop = i * pixels // size, -(-(i + 1) * pixels // size)
    inside = (start <= pixel) & (pixel < stop)
    return jnp.asarray(inside / inside.sum(1, keepdims=True), x.dtype)

  if x.shape[1:3] == (size, size):
    return x
  rows, columns = windows(x.shape[1]), windows(x.shape[2])
  return jnp.einsum('ph,qw,bhwc->bpqc', rows, columns, x)


class Linear(nn.Module):
  """A linear function with bias, for regression."""

  num_outputs: int
  dtype: fields.DType = 'float32'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch features'], *, train: bool
  ) -> Float[Array, 'batch outputs']:
    del train
    return nn.Dense(self.num_outputs, dtype=self.dtype)(x)


class ConvNet(nn.Module):
  """Two 3x3 convolutions, 2x2 pooling and a hidden dense layer.

  It is for small images. The activation is smooth (GELU). With ReLU, rounding
  could switch a unit on or off. With GELU, runs that sum in a different order
  (`pmap` and `vmap`, one process and several) stay close to each other.
  """

  num_classes: int
  # The first convolution's filters. The second has twice as many, and the
  # hidden layer has four times as many features.
  num_filters: fields.Width = 32
  dtype: fields.DType = 'float32'

  @nn.compact
  def __call__(self, x: fields.Images, *, train: bool) -> fields.Scores:
    del train
    x = nn.gelu(nn.Conv(self.num_filters, (3, 3), dtype=self.dtype)(x))
    x = nn.gelu(nn.Conv(2 * self.num_filters, (3, 3), dtype=self.dtype)(x))
    x = nn.max_pool(x, (2, 2), strides=(2, 2)).reshape(x.shape[0], -1)
    x = nn.gelu(nn.Dense(4 * self.num_filters, dtype=self.dtype)(x))
    return nn.Dense(self.num_classes, dtype=self.dtype)(x)


class AlexNet(nn.Module):
  """Five convolutions and three dense layers."""

  num_classes: int
  # The first convolution's filters; others have 3, 6, 4 and 4 times as many.
  num_filters: fields.Width = 64
  mlp_dim: fields.MlpDim = 4096  # The width of the two hidden dense layers.
  pool_size: fields.Size = 6  # The side of the last feature map, after pooling.
  dropout: Share = 0.5  # Before each hidden dense layer.
  dtype: fields.DType = 'float32'

  @nn.compact
  def __call__(self, x: fields.Images, *, train: bool) -> fields.Scores:
    # Multiple of num_filters, kernel size, stride, padding, whether to pool.
    for ratio, size, stride, padding, pool in (
      (1, 11, 4, 2, True),
      (3, 5, 1, 2, True),
      (6, 3, 1, 1, False),
      (4, 3, 1, 1, False),
      (4, 3, 1, 1, True),
    ):
      features = ratio * self.num_filters
      layer = conv(
        features, size, stride, padding=padding, use_bias=True, dtype=self.dtype
      )
      x = nn.relu(layer(x))
      x = nn.max_pool(x, (3, 3), (2, 2)) if pool else x
    x = adaptive_avg_pool(x, self.pool_size).reshape(x.shape[0], -1)
    for _ in range(2):
      x = nn.Dropout(self.dropout, deterministic=not train)(x)
      x = nn.relu(nn.Dense(self.mlp_dim, kernel_init=HE, dtype=self.dtype)(x))
    return nn.Dense(self.num_classes, dtype=self.dtype)(x)


class VGG11(nn.Module):
  """Eight 3x3 convolutions and three dense layers."""

  num_classes: int
  batch_norm: bool = False  # Whether batch norm follows every convolution.
  # The first convolution's filters; the last has 8 times as many.
  num_filters: fields.Width = 64
  mlp_dim: fields.MlpDim = 4096  # The width of the two hidden dense layers.
  pool_size: fields.Size = 7  # The side of the last feature map, after pooling.
  dropout: Share = 0.5  # After each hidden dense layer.
  dtype: fields.DType = 'float32'

  @nn.compact
  def __call__(self, x: fields.Images, *, train: bool) -> fields.Scores:
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


# The number of blocks per stage, and whether they are bottlenecks, by depth.
DEPTHS = {
  18: ((2, 2, 2, 2), False),
  50: ((3, 4, 6, 3), True),
  101: ((3, 4, 23, 3), True),
}
# Kernel size and stride of the convolution, and whether to pool, by stem.
STEMS = {'imagenet': (7, 2, True), 'cifar': (3, 1, False)}


class Block(nn.Module):
  """A residual block: two or three convolutions and a shortcut."""

  num_filters: int  # The last convolution of a bottleneck has 4 times as many.
  stride: int  # For the first 3x3 convolution and the shortcut.
  bottleneck: bool  # Convolutions are 1x1, 3x3, 1x1 instead of 3x3, 3x3.
  dtype: str

  @nn.compact
  def __call__(
    self, x: fields.Images, *, train: bool
  ) -> Float[Array, 'batch out_height out_width out_channels']:
    filters, stride = self.num_filters, self.stride
    layers = [(filters, 3, stride), (filters, 3, 1)]
    if self.bottleneck:
      layers = [(filters, 1, 1), (filters, 3, stride), (4 * filters, 1, 1)]
    y = x
    for i, layer in enumerate(layers):
      y = nn.relu(y) if i else y
      y = conv(*layer, dtype=self.dtype)(y)
      y = batch_norm(train=train, dtype=self.dtype)(y)
    if x.shape != y.shape:
      x = conv(y.shape[-1], 1, stride, dtype=self.dtype)(x)
      x = batch_norm(train=train, dtype=self.dtype)(x)
    return nn.relu(x + y)


class ResNet(nn.Module):
  """A stem, four stages of residual blocks, global average pooling, a head."""

  num_classes: int
  depth: Literal[18, 50, 101] = 18  # The number of layers.
  stem: Literal['imagenet', 'cifar'] = 'imagenet'
  # The filters of the stem and of the first stage's 3x3 convolutions. The
  # number doubles from stage to stage.
  num_filters: fields.Width = 64
  dtype: fields.DType = 'float32'

  @nn.compact
  def __call__(self, x: fields.Images, *, train: bool) -> fields.Scores:
    kernel_size, stride, pool = STEMS[self.stem]
    x = conv(self.num_filters, kernel_size, stride, dtype=self.dtype)(x)
    x = nn.relu(batch_norm(train=train, dtype=self.dtype)(x))
    if pool:
      x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
    stages, bottleneck = DEPTHS[self.depth]
    for i, num_blocks in enumerate(stages):
      for j in range(num_blocks):
        stride = 2 if i and not j else 1
        block = Block(self.num_filters * 2**i, stride, bottleneck, self.dtype)
        x = block(x, train=train)
    return nn.Dense(self.num_classes, dtype=self.dtype)(x.mean((1, 2)))
