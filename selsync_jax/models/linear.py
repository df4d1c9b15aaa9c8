"""A linear function, for regression."""

import flax.linen as nn
from jaxtyping import Array, Float

from selsync_jax.models.fields import DType


class Linear(nn.Module):
  """A linear function with bias.

  Attributes:
    num_outputs: the size of the output.
    dtype: the computation's dtype; parameters are float32.
  """

  num_outputs: int
  dtype: DType = 'float32'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'batch features'], *, train: bool
  ) -> Float[Array, 'batch outputs']:
    del train
    return nn.Dense(self.num_outputs, dtype=self.dtype)(x)
