"""Causal multi-head self-attention, with or without rotary positions.

Flax's `dot_product_attention` scales the query before the product and, in
bfloat16, rounds the scores before the softmax. Here the scores are scaled and
normalized in float32. Flax's attention module has no rotary positions.

On an NVIDIA GPU, cuDNN's fused kernel computes the same in bfloat16 and stores
no scores in memory. It has no dropout of the weights.

References:
  Vaswani et al., `Attention Is All You Need`, NeurIPS 2017.
  Su et al., `RoFormer: Enhanced Transformer with Rotary Position Embedding`,
  2021.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

Heads = Float[Array, 'batch time heads depth']


def apply_rotary(x: Heads, base: float = 10_000.0) -> Heads:
  """Rotates each pair of features by an angle proportional to the position.

  At position t, the features i and i + depth/2 are rotated by the angle
  t base**(-2 i / depth). The product of a rotated query and a rotated key then
  depends on the positions only through their distance.
  """
  time, depth = x.shape[1], x.shape[3]
  frequency = base ** (-np.arange(0, depth, 2) / depth)
  angle = (np.arange(time)[:, None] * frequency)[None, :, None]
  cos, sin = jnp.asarray(np.cos(angle)), jnp.asarray(np.sin(angle))
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  rotated = [first * cos - second * sin, second * cos + first * sin]
  return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def attention_weights(
  query: Heads, key: Heads
) -> Float[Array, 'batch heads time time']:
  """Returns softmax(q k^T / sqrt(depth)) over the past, in float32."""
  time, depth = query.shape[1], query.shape[3]
  scores = jnp.einsum(
    'bqhd,bkhd->bhqk', query, key, preferred_element_type=jnp.float32
  )
  mask = nn.make_causal_mask(jnp.ones((1, time)), dtype=bool)
  return jax.nn.softmax(
    jnp.where(mask, scores / jnp.sqrt(depth), -jnp.inf), axis=-1
  )


def _is_fused(query: Heads) -> bool:
  """Whether cuDNN's kernel can compute attention for such a query."""
  return (
    jax.default_backend() == 'gpu'
    and 'cuda' in jax.local_devices()[0].client.platform_version
    and query.dtype == jnp.bfloat16
    and query.shape[3] in range(8, 129, 8)
  )


class CausalAttention(nn.Module):
  """Multi-head self-attention to the current and earlier positions."""

  num_heads: int  # A divisor of the embedding dimension.
  rotary: bool  # Whether to apply rotary positions to queries and keys.
  use_bias: bool  # Whether the projections have biases.
  dropout: float  # The dropout rate of the attention weights.
  kernel_init: nn.initializers.Initializer  # For the input projection.
  out_kernel_init: nn.initializers.Initializer  # For the output projection.
  dtype: str  # The computation's dtype; the softmax is float32.
  # `auto`, the fused kernel where there is one; or `xla`, never.
  implementation: str = 'auto'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch time embed'], *, train: bool
  ) -> Float[Array, 'batch time embed']:
    embed_dim = x.shape[-1]
    dense = functools.partial(
      nn.Dense, use_bias=self.use_bias, dtype=self.dtype
    )
    x = dense(3 * embed_dim, kernel_init=self.kernel_init, name='qkv')(x)
    depth = embed_dim // self.num_heads
    x = x.reshape(*x.shape[:2], 3, self.num_heads, depth)
    query, key, value = x[:, :, 0], x[:, :, 1], x[:, :, 2]
    if self.rotary:
      query, key = apply_rotary(query), apply_rotary(key)
    drops = train and self.dropout
    if not drops and self.implementation != 'xla' and _is_fused(query):
      x = jax.nn.dot_product_attention(
        query, key, value, is_causal=True, implementation='cudnn'
      )
    else:
      weights = attention_weights(query, key).astype(value.dtype)
      if drops:
        weights = nn.Dropout(self.dropout, deterministic=False)(weights)
      x = jnp.einsum('bhqk,bkhd->bqhd', weights, value)
    out = dense(embed_dim, kernel_init=self.out_kernel_init, name='out')
    return out(x.reshape(*x.shape[:2], embed_dim))
