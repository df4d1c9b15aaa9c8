"""Residual networks, for large or small images.

References:
  He et al., `Deep Residual Learning for Image Recognition`, CVPR 2016. As in
  torchvision, the stride of a bottleneck is that of its 3x3 convolution.
"""

from typing import Literal

import flax.linen as nn
from jaxtyping import Array, Float

from selsync_jax.models.convolution import batch_norm
from selsync_jax.models.convolution import conv
from selsync_jax.models.fields import DType
from selsync_jax.models.fields import Width

# By depth: the number of blocks per stage, and whether they are bottlenecks.
DEPTHS = {
  18: ((2, 2, 2, 2), False),
  50: ((3, 4, 6, 3), True),
  101: ((3, 4, 23, 3), True),
}
# By stem: kernel size and stride of its convolution, and whether it pools.
STEMS = {'imagenet': (7, 2, True), 'cifar': (3, 1, False)}


class Block(nn.Module):
  """A residual block: two or three convolutions and a shortcut.

  Attributes:
    num_filters: the convolutions' filters; the last one of a bottleneck has 4
      times as many.
    stride: the stride of the first 3x3 convolution and of the shortcut.
    bottleneck: whether convolutions are 1x1, 3x3, 1x1 instead of 3x3, 3x3.
    dtype: the computation's dtype.
  """

  num_filters: int
  stride: int
  bottleneck: bool
  dtype: str

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch height width channels'], *, train: bool
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
  """A stem, four stages of residual blocks, global average pooling, a head.

  Attributes:
    num_classes: the size of the output.
    depth: the number of layers: 18, 50 or 101.
    stem: `imagenet`, a 7x7 convolution with stride 2 and pooling, or `cifar`,
      a 3x3 convolution.
    num_filters: the filters of the stem and of the first stage's 3x3
      convolutions; each stage has twice as many as the one before.
    dtype: the computation's dtype; parameters are float32.
  """

  num_classes: int
  depth: Literal[18, 50, 101] = 18
  stem: Literal['imagenet', 'cifar'] = 'imagenet'
  num_filters: Width = 64
  dtype: DType = 'float32'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch height width channels'], *, train: bool
  ) -> Float[Array, 'batch classes']:
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
