"""Layers of the convolutional networks, as in torchvision.

References:
  He et al., `Delving Deep into Rectifiers`, ICCV 2015: the initialization.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

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
  x: Float[Array, 'batch height width channels'], size: int
) -> Float[Array, 'batch {size} {size} channels']:
  """Averages an image of any size over `size` by `size` windows.

  As in PyTorch, window i of n covers the pixels floor(i s / n) to
  ceil((i + 1) s / n) of s. If s < n, pixels are repeated.

  Raises:
    ValueError: if an axis of the image is empty.
  """
  if 0 in x.shape:
    raise ValueError(f'the images are too small: nothing is left, {x.shape}')

  def windows(pixels):
    pixel, i = np.arange(pixels), np.arange(size)[:, None]
    start, stop = i * pixels // size, -(-(i + 1) * pixels // size)
    inside = (start <= pixel) & (pixel < stop)
    return jnp.asarray(inside / inside.sum(1, keepdims=True), x.dtype)

  if x.shape[1:3] == (size, size):
    return x
  rows, columns = windows(x.shape[1]), windows(x.shape[2])
  return jnp.einsum('ph,qw,bhwc->bpqc', rows, columns, x)
