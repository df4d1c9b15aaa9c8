"""Models by name. A model knows nothing of workers or synchronisation."""

from typing import Any

import flax.linen as nn

from selsync_jax.config import pick
from selsync_jax.models.convnet import ConvNet

MODELS = {'convnet': ConvNet}


def create(name: str, **fields: Any) -> nn.Module:
  """The model `name` with its own fields.

  Raises:
    ValueError: if the name is unknown, or a field is not one of the model's.
  """
  make = pick(MODELS, name)
  for field, value in fields.items():
    if field not in make.__dataclass_fields__:
      raise ValueError(f'{field}={value!r}: model {name} has no {field}')
  return make(**fields)
