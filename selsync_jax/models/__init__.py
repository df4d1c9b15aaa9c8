"""Models by name.

A model is a flax module. Its first field is the number of scores it returns,
its other fields are those of `config.model`, and `model(x, *, train)` returns
scores with a last axis of classes. Parameters are float32 for every `dtype` of
the computation. Models do not depend on workers or synchronization.
"""

import inspect
from typing import Any

import flax.linen as nn

from selsync_jax.config import FLAG
from selsync_jax.config import lookup
from selsync_jax.config import one_of
from selsync_jax.config import Registry
from selsync_jax.config import share
from selsync_jax.config import TEXT
from selsync_jax.config import whole
from selsync_jax.models.classic import AlexNet
from selsync_jax.models.classic import VGG11
from selsync_jax.models.convnet import ConvNet
from selsync_jax.models.linear import Linear
from selsync_jax.models.resnet import ResNet
from selsync_jax.models.transformer import Decoder
from selsync_jax.models.transformer import TransformerLM

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
RULES = {
  'name': TEXT,
  'dtype': one_of('float32', 'bfloat16'),
  'depth': whole(1),
  'stem': TEXT,
  'batch_norm': FLAG,
  'dropout': share(),
  'num_filters': whole(1, 2**16),
  'mlp_dim': whole(1, 2**20),
  'pool_size': whole(1, 2**10),
  'num_layers': whole(1, 2**10),
  'embed_dim': whole(1, 2**16),
  'num_heads': whole(1, 2**10),
  'attention': one_of('auto', 'xla', 'cudnn'),
  'remat': FLAG,
}
"""Of the fields of our models; a model of your own has others."""


def register_model(model: Any) -> Any:
  """Adds a model of your own to the table, under its own name.

  A decorator for a flax module like those in this folder, or for a function
  that returns one. The first field or argument takes the number of scores; the
  others are fields of `config.model`.

  Raises:
    ConfigError: if another model has this name.
  """
  return MODELS.register(model)


def create_model(name: str, num_outputs: int, **fields: Any) -> nn.Module:
  """Creates a model.

  Args:
    name: a name in `MODELS`.
    num_outputs: the number of classes, or the size of the vocabulary.
    **fields: other fields of the model; unset ones keep their defaults.

  Raises:
    ValueError: if the name is unknown, a field is not one of the model's, or
      a value breaks a rule of the model.
    ConfigError: if a model of a user's own raises an error.
  """
  model = lookup(MODELS, name)
  _, *accepted = inspect.signature(model).parameters
  if 'dtype' not in accepted and fields.get('dtype') == 'float32':
    del fields['dtype']  # The default, for models that have the field.
  for field, value in fields.items():
    if field not in accepted:
      raise ValueError(f'{field}={value!r}: model {name} has no {field}')
    is_ours = field in RULES and not MODELS.is_own(name)
    if is_ours and (message := RULES[field].broken(value)):
      raise ValueError(f'{field}={value!r}: {message}')
  with MODELS.errors(name, 'model'):
    return model(num_outputs, **fields)
