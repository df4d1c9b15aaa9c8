"""Language models: the paper's Transformer, and a LLaMA-style decoder.

References:
  Vaswani et al., `Attention Is All You Need`, NeurIPS 2017, as in PyTorch's
  word-language-model example, which Tyagi and Swany, CLUSTER 2023, train.
  Touvron et al., `LLaMA: Open and Efficient Foundation Language Models`, 2023:
  pre-normalization with RMSNorm, rotary positions, SwiGLU.
  Radford et al., `Language Models are Unsupervised Multitask Learners`, 2019:
  smaller initial weights for the layers that write to the residual stream.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np

from selsync_jax.config import Share
from selsync_jax.models import fields
from selsync_jax.models.attention import CausalAttention

GLOROT = nn.initializers.glorot_uniform()


def sinusoids(time: int, embed_dim: int) -> Float[np.ndarray, 'time embed']:
  """Returns sin(t w_i), cos(t w_i) alternating, w_i = 10000**(-2 i / d)."""
  frequency = 10_000.0 ** (-np.arange(0, embed_dim, 2) / embed_dim)
  angle = np.arange(time)[:, None] * frequency
  table = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
  return table.reshape(time, embed_dim)


def _uniform(key, shape, dtype):
  """Initializes uniformly in [-0.1, 0.1), as PyTorch's example does."""
  return jax.random.uniform(key, shape, dtype, -0.1, 0.1)


def _check(model: Any, *factors: int) -> None:
  """Raises `ValueError` unless all factors divide the model's `embed_dim`."""
  width = model.embed_dim
  for factor in factors:
    if width % factor:
      raise ValueError(f'embed_dim must be a multiple of {factor}, got {width}')


class TransformerLM(nn.Module):
  """The paper's language model: post-norm layers with causal attention."""

  vocab_size: int
  num_layers: fields.Size = 2
  embed_dim: fields.Width = 200  # Even and a multiple of `num_heads`.
  num_heads: fields.Size = 2
  mlp_dim: fields.MlpDim = 200  # The width of the feed-forward layer.
  dropout: Share = 0.2  # For embeddings, attention weights and sublayers.
  dtype: fields.DType = 'float32'
  attention: fields.Attention = 'auto'  # See `CausalAttention.implementation`.

  def __post_init__(self):
    super().__post_init__()
    _check(self, self.num_heads, 2)  # Pairs of sine and cosine.

  @nn.compact
  def __call__(self, x: fields.Tokens, *, train: bool) -> fields.TokenScores:
    def drop(x):
      return nn.Dropout(self.dropout, deterministic=not train)(x)

    def norm(x):
      return nn.LayerNorm(epsilon=1e-5, dtype=self.dtype)(x)

    def dense(features, x):
      return nn.Dense(features, kernel_init=GLOROT, dtype=self.dtype)(x)

    embed = nn.Embed(
      self.vocab_size, self.embed_dim, embedding_init=_uniform, dtype=self.dtype
    )
    positions = sinusoids(x.shape[1], self.embed_dim)[None]
    x = embed(x) * self.embed_dim**0.5
    x = drop(x + jnp.asarray(positions, x.dtype))
    for _ in range(self.num_layers):
      attend = CausalAttention(
        self.num_heads,
        rotary=False,
        use_bias=True,
        dropout=self.dropout,
        kernel_init=GLOROT,
        out_kernel_init=GLOROT,
        dtype=self.dtype,
        implementation=self.attention,
      )
      x = norm(x + drop(attend(x, train=train)))
      y = drop(nn.relu(dense(self.mlp_dim, x)))
      x = norm(x + drop(dense(self.embed_dim, y)))
    return nn.Dense(self.vocab_size, kernel_init=_uniform, dtype=self.dtype)(x)


class Decoder(nn.Module):
  """A LLaMA-style decoder: pre-norm, RMSNorm, rotary positions, SwiGLU."""

  vocab_size: int
  num_layers: fields.Size = 4
  embed_dim: fields.Width = 128  # A multiple of 2 `num_heads`.
  num_heads: fields.Size = 4
  # The width of the feed-forward layer. A gated layer with 8/3 `embed_dim` has
  # as many parameters as one with 4 `embed_dim` and no gate.
  mlp_dim: fields.MlpDim = 344
  dropout: Share = 0.0  # For attention weights and sublayers.
  dtype: fields.DType = 'float32'
  attention: fields.Attention = 'auto'  # See `CausalAttention.implementation`.
  # Whether the backward pass recomputes the layers' activations, one layer at a
  # time, instead of keeping them in memory.
  remat: bool = False

  def __post_init__(self):
    super().__post_init__()
    _check(self, 2 * self.num_heads)

  @nn.compact
  def __call__(self, x: fields.Tokens, *, train: bool) -> fields.TokenScores:
    lecun = nn.initializers.lecun_normal()
    # 2 `num_layers` layers write to the residual stream. This variance makes
    # the variance of their sum independent of the depth.
    residual = nn.initializers.variance_scaling(
      0.5 / self.num_layers, 'fan_in', 'normal'
    )

    def drop(x):
      return nn.Dropout(self.dropout, deterministic=not train)(x)

    def norm(x):
      return nn.RMSNorm(dtype=self.dtype)(x)

    def dense(features, x, kernel_init=lecun):
      return nn.Dense(
        features, use_bias=False, kernel_init=kernel_init, dtype=self.dtype
      )(x)

    def layer(self, x):
      attend = CausalAttention(
        self.num_heads,
        rotary=True,
        use_bias=False,
        dropout=self.dropout,
        kernel_init=lecun,
        out_kernel_init=residual,
        dtype=self.dtype,
        implementation=self.attention,
      )
      x = x + drop(attend(norm(x), train=train))
      y = norm(x)
      y = nn.silu(dense(self.mlp_dim, y)) * dense(self.mlp_dim, y)
      return x + drop(dense(self.embed_dim, y, residual))

    normal = nn.initializers.normal(1.0)
    x = nn.Embed(
      self.vocab_size, self.embed_dim, embedding_init=normal, dtype=self.dtype
    )(x)
    for _ in range(self.num_layers):
      x = (nn.remat(layer) if self.remat else layer)(self, x)
    return dense(self.vocab_size, norm(x))
