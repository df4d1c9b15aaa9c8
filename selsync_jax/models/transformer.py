"""Language models: the paper's Transformer, and the decoder of today.

References:
  Vaswani et al., `Attention Is All You Need`, NeurIPS 2017, in the form of
  PyTorch's word-language-model example, which Tyagi and Swany, CLUSTER 2023,
  train.
  Touvron et al., `LLaMA: Open and Efficient Foundation Language Models`, 2023:
  normalisation before each layer by root mean square, rotary positions, SwiGLU.
  Radford et al., `Language Models are Unsupervised Multitask Learners`, 2019:
  what is added to the residual stream starts small.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from selsync_jax.models import attention

GLOROT = nn.initializers.glorot_uniform()


def sinusoids(time: int, width: int) -> Float[np.ndarray, 'time width']:
  """sin(t w_i) and cos(t w_i) in turn, w_i = 10000**(-2 i / width)."""
  speed = 10_000.0 ** (-np.arange(0, width, 2) / width)
  angle = np.arange(time)[:, None] * speed
  return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(time, width)


def _narrow(key, shape, dtype):
  """The example's own: uniform in [-0.1, 0.1)."""
  return jax.random.uniform(key, shape, dtype, -0.1, 0.1)


class TransformerLM(nn.Module):
  """The paper's: post-norm encoder layers that read to the left only.

  Attributes:
    classes: size of the vocabulary.
    layers: number of encoder layers.
    width: d, of the residual stream; even, a multiple of `heads`.
    heads: of the attention.
    hidden: width of the feed-forward layer.
    dropout: rate on embeddings, attention weights and both sublayers.
    dtype: of the computation; parameters are float32.
  """

  classes: int
  layers: int = 2
  width: int = 200
  heads: int = 2
  hidden: int = 200
  dropout: float = 0.2
  dtype: str = 'float32'

  def __post_init__(self):
    super().__post_init__()
    attention.check(self.width, self.heads)
    attention.check(self.width, 1, even=True)  # Sines and cosines.

  @nn.compact
  def __call__(
    self, x: Int[Array, 'batch time'], *, train: bool
  ) -> Float[Array, 'batch time classes']:
    def drop(x):
      return nn.Dropout(self.dropout, deterministic=not train)(x)

    def norm(x):
      return nn.LayerNorm(epsilon=1e-5, dtype=self.dtype)(x)

    def dense(width, x):
      return nn.Dense(width, kernel_init=GLOROT, dtype=self.dtype)(x)

    embed = nn.Embed(
      self.classes, self.width, embedding_init=_narrow, dtype=self.dtype
    )
    place = sinusoids(x.shape[1], self.width)[None]
    x = embed(x) * self.width**0.5
    x = drop(x + jnp.asarray(place, x.dtype))
    for _ in range(self.layers):
      attend = attention.CausalAttention(
        self.heads, False, True, self.dropout, GLOROT, GLOROT, self.dtype
      )
      x = norm(x + drop(attend(x, train=train)))
      y = drop(nn.relu(dense(self.hidden, x)))
      x = norm(x + drop(dense(self.width, y)))
    return nn.Dense(self.classes, kernel_init=_narrow, dtype=self.dtype)(x)


class Decoder(nn.Module):
  """What people train today: pre-norm, RMSNorm, rotary positions, SwiGLU.

  Attributes:
    classes: size of the vocabulary.
    layers: number of layers.
    width: of the residual stream; a multiple of twice `heads`.
    heads: of the attention.
    hidden: width of the feed-forward layer; 8/3 of `width` costs what a layer
      without a gate costs at 4.
    dropout: rate on attention weights and both sublayers.
    dtype: of the computation; parameters are float32.
  """

  classes: int
  layers: int = 4
  width: int = 128
  heads: int = 4
  hidden: int = 344
  dropout: float = 0.0
  dtype: str = 'float32'

  def __post_init__(self):
    super().__post_init__()
    attention.check(self.width, self.heads, even=True)

  @nn.compact
  def __call__(
    self, x: Int[Array, 'batch time'], *, train: bool
  ) -> Float[Array, 'batch time classes']:
    init = nn.initializers.lecun_normal()
    # The variance of 2 x layers sums, less what grows with their number.
    small = nn.initializers.variance_scaling(
      0.5 / self.layers, 'fan_in', 'normal'
    )

    def drop(x):
      return nn.Dropout(self.dropout, deterministic=not train)(x)

    def norm(x):
      return nn.RMSNorm(dtype=self.dtype)(x)

    def dense(width, x, init=init):
      return nn.Dense(
        width, use_bias=False, kernel_init=init, dtype=self.dtype
      )(x)

    x = nn.Embed(
      self.classes,
      self.width,
      embedding_init=nn.initializers.normal(1.0),
      dtype=self.dtype,
    )(x)
    for _ in range(self.layers):
      attend = attention.CausalAttention(
        self.heads, True, False, self.dropout, init, small, self.dtype
      )
      x = x + drop(attend(norm(x), train=train))
      y = norm(x)
      y = nn.silu(dense(self.hidden, y)) * dense(self.hidden, y)
      x = x + drop(dense(self.width, y, small))
    return dense(self.classes, norm(x))
