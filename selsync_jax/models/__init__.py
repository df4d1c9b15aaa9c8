"""The registry of models.

A model is a module of flax linen. Its first field is the number of scores, and
the other fields are the fields of `config.model`. `model(x, *, train)` returns
scores with a last axis of classes. `bridge` converts a module of flax nnx.
Parameters are float32 for every `dtype` of the computation. Models do not
depend on workers or synchronization.
"""

from collections.abc import Mapping
import inspect
from typing import Any

import flax.linen as nn

from selsync_jax.config import bind, Bound, config_errors, lookup, Registry
from selsync_jax.models.convolution import (
  AlexNet,
  ConvNet,
  Linear,
  ResNet,
  VGG11,
)
from selsync_jax.models.transformer import Decoder, TransformerLM

MODELS = Registry(
  'model',
  {
    'convnet': ConvNet,
    'resnet': ResNet,
    'vgg11': VGG11,
    'alexnet': AlexNet,
    'transformer': TransformerLM,
    'decoder': Decoder,
    'linear': Linear,
  },
)


def register_model(model: Any) -> Any:
  """Adds a custom model to the table, under its own name.

  This decorates a module of flax linen or nnx like the ones in this folder, or
  a function that returns one. The first field or argument is the number of
  scores; the others are fields of `config.model`. A constructor of nnx modules
  takes `rngs` as well.

  Raises:
    ConfigError: if another model has this name.
  """
  # Its import of nnx would take a third of a second of every start.
  from selsync_jax.models.bridge import as_linen

  return MODELS.register(model, as_linen(model))


def bind_model(fields: Mapping[str, Any]) -> Bound:
  """Binds a model's fields; call the result with the number of scores.

  Args:
    fields: `name`, a name in `MODELS`, and other fields of the model. Missing
      fields keep their defaults.

  Raises:
    ConfigError: if the name is unknown, a field is not one of the model's, or
      a value breaks a rule of the model.
  """
  given = dict(fields)
  with config_errors('model.name'):
    outputs, *own = inspect.signature(lookup(MODELS, given['name'])).parameters
  if 'dtype' not in own and given.get('dtype') == 'float32':
    del given['dtype']  # Models without the field compute in float32.
  return bind(MODELS, given, 'model', given={outputs, 'parent', 'name'})


def create_model(name: str, num_outputs: int, **fields: Any) -> nn.Module:
  """Creates a model with `num_outputs` classes or tokens; see `bind_model`."""
  return bind_model({'name': name, **fields})(num_outputs)
