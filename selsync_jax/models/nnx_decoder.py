"""The decoder of transformer.py, written in flax nnx."""

import dataclasses
import functools

from flax import nnx
import jax

from selsync_jax.models import fields
from selsync_jax.models.attention import attend
from selsync_jax.models.transformer import DecoderFields


class Layer(nnx.Module):
  """Attention, and then a gated feed-forward layer, each added to its input."""

  def __init__(self, decoder: DecoderFields, rngs: nnx.Rngs):
    width, residual = decoder.embed_dim, decoder.residual_init
    dense, norm = _layers(decoder, rngs)
    self.num_heads, self.attention = decoder.num_heads, decoder.attention
    self.attention_norm, self.mlp_norm = norm(), norm()
    self.qkv = dense(width, 3 * width)
    self.out = dense(width, width, kernel_init=residual)
    self.gate = dense(width, decoder.mlp_dim)
    self.up = dense(width, decoder.mlp_dim)
    self.down = dense(decoder.mlp_dim, width, kernel_init=residual)
    self.dropout = nnx.Dropout(decoder.dropout, rngs=rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    is_dropped = self.dropout.rate and not self.dropout.deterministic
    attended = attend(
      self.qkv(self.attention_norm(x)),
      self.num_heads,
      rotary=True,
      drop=self.dropout if is_dropped else None,
      implementation=self.attention,
    )
    x = x + self.dropout(self.out(attended))
    y = self.mlp_norm(x)
    y = nnx.silu(self.gate(y)) * self.up(y)
    return x + self.dropout(self.down(y))


@dataclasses.dataclass(eq=False)
class NnxDecoder(DecoderFields, nnx.Module):
  """`Decoder`, with the same fields, in flax nnx."""

  rngs: dataclasses.InitVar[nnx.Rngs] = dataclasses.field(kw_only=True)

  def __post_init__(self, rngs):
    self.check()
    dense, norm = _layers(self, rngs)
    self.embed = nnx.Embed(
      self.vocab_size,
      self.embed_dim,
      embedding_init=nnx.initializers.normal(1.0),
      dtype=self.dtype,
      rngs=rngs,
    )
    self.layers = nnx.List(Layer(self, rngs) for _ in range(self.num_layers))
    self.norm, self.scores = norm(), dense(self.embed_dim, self.vocab_size)

  def __call__(self, x: fields.Tokens) -> fields.TokenScores:
    x = self.embed(x)
    apply = nnx.remat(Layer.__call__) if self.remat else Layer.__call__
    for layer in self.layers:
      x = apply(layer, x)
    return self.scores(self.norm(x))


def _layers(decoder, rngs):
  """Returns the constructors of a linear layer and of a norm."""
  options = {'dtype': decoder.dtype, 'rngs': rngs}
  dense = functools.partial(nnx.Linear, use_bias=False, **options)
  return dense, functools.partial(nnx.RMSNorm, decoder.embed_dim, **options)
