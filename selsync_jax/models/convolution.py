"""What the convolutional networks have in common, as torchvision has it.

References:
  He et al., `Delving Deep into Rectifiers`, ICCV 2015: the initialisation.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

HE = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')


def conv(
  width: int,
  side: int,
  stride: int = 1,
  *,
  dtype: str,
  bias: bool = False,
  padding: int | None = None,
) -> nn.Conv:
  """A convolution that pads both ends alike; by half its side unless told."""
  return nn.Conv(
    width,
    (side, side),
    stride,
    padding=side // 2 if padding is None else padding,
    use_bias=bias,
    kernel_init=HE,
    dtype=dtype,
  )


def norm(*, train: bool, dtype: str) -> nn.BatchNorm:
  """Batch normalisation, over this worker's batch."""
  return nn.BatchNorm(
    use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=dtype
  )


def adaptive_mean(
  x: Float[Array, 'batch height width channels'], side: int
) -> Float[Array, 'batch {side} {side} channels']:
  """Means over `side` by `side` windows that cover an image of any size.

  Window i of n spans the pixels floor(i s / n) to ceil((i + 1) s / n) of s, as
  in PyTorch; an image smaller than that is repeated.

  Raises:
    ValueError: if nothing is left of the image.
  """
  if 0 in x.shape:
    raise ValueError(f'the images are too small: nothing is left, {x.shape}')

  def windows(size):
    pixel, i = np.arange(size), np.arange(side)[:, None]
    inside = (i * size // side <= pixel) & (pixel < -(-(i + 1) * size // side))
    return jnp.asarray(inside / inside.sum(1, keepdims=True), x.dtype)

  if x.shape[1:3] == (side, side):
    return x
  rows, columns = windows(x.shape[1]), windows(x.shape[2])
  return jnp.einsum('ph,qw,bhwc->bpqc', rows, columns, x)
