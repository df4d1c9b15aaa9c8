"""Causal attention with several heads, with or without rotary positions.

References:
  Vaswani et al., `Attention Is All You Need`, NeurIPS 2017.
  Su et al., `RoFormer: Enhanced Transformer with Rotary Position Embedding`,
  2021.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np


def rotate(
  x: Float[Array, 'batch time heads depth'], base: float = 10_000.0
) -> Float[Array, 'batch time heads depth']:
  """Turns each pair of features by an angle that grows with the position.

  Pair i (of the features i and i + depth/2) at position t is turned by
  t base**(-2 i / depth), so that the product of a query and a key depends on
  their distance alone.
  """
  time, depth = x.shape[1], x.shape[3]
  speed = base ** (-np.arange(0, depth, 2) / depth)
  angle = (np.arange(time)[:, None] * speed)[None, :, None]
  cos, sin = jnp.asarray(np.cos(angle)), jnp.asarray(np.sin(angle))
  one, other = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = [one * cos - other * sin, other * cos + one * sin]
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def weights(
  query: Float[Array, 'batch time heads depth'],
  key: Float[Array, 'batch time heads depth'],
) -> Float[Array, 'batch heads time time']:
  """How much each position (third axis) reads from it and those before it.

  softmax(q k^T / sqrt(depth)), in float32.
  """
  time, depth = query.shape[1], query.shape[3]
  scores = jnp.einsum(
    'bqhd,bkhd->bhqk', query, key, preferred_element_type=jnp.float32
  )
  past = jnp.tril(jnp.ones((1, 1, time, time), bool))
  return jax.nn.softmax(
    jnp.where(past, scores / jnp.sqrt(depth), -jnp.inf), axis=-1
  )


class CausalAttention(nn.Module):
  """Every position reads from itself and from those before it.

  Attributes:
    heads: by which the width is divided.
    rotary: turn queries and keys by their positions.
    bias: on the projections.
    dropout: rate on the attention weights.
    kernel_init: of the projection in.
    out_init: of the projection out.
    dtype: of the computation; the softmax is float32.
  """

  heads: int
  rotary: bool
  bias: bool
  dropout: float
  kernel_init: nn.initializers.Initializer
  out_init: nn.initializers.Initializer
  dtype: str

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch time width'], *, train: bool
  ) -> Float[Array, 'batch time width']:
    batch, time, width = x.shape
    x = nn.Dense(
      3 * width,
      use_bias=self.bias,
      kernel_init=self.kernel_init,
      dtype=self.dtype,
      name='qkv',
    )(x)
    x = x.reshape(batch, time, 3, self.heads, width // self.heads)
    query, key, value = x[:, :, 0], x[:, :, 1], x[:, :, 2]
    if self.rotary:
      query, key = rotate(query), rotate(key)
    reads = weights(query, key).astype(value.dtype)
    reads = nn.Dropout(self.dropout, deterministic=not train)(reads)
    x = jnp.einsum('bhqk,bkhd->bqhd', reads, value)
    return nn.Dense(
      width,
      use_bias=self.bias,
      kernel_init=self.out_init,
      dtype=self.dtype,
      name='out',
    )(x.reshape(batch, time, width))


def check(width: int, heads: int, *, even: bool = False) -> None:
  """Raises `ValueError` unless `heads` share `width` (in even parts)."""
  parts = 2 * heads if even else heads
  if width % parts:
    raise ValueError(f'width must be a multiple of {parts}, got {width}')
