"""All models: their sizes, initial weights, dtypes, dropout and statistics."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selsync_jax import models
from selsync_jax.config import ConfigError
from tests.support.marks import slow_but
from tests.support.random_weights import random_variables, UNOPTIMIZED

IMAGENET, CIFAR, TEXT = (224, 224, 3), (32, 32, 3), None

COUNTS = [
  # Published with torchvision's weights.
  (dict(name='resnet', depth=18), 1000, IMAGENET, 11_689_512),
  (dict(name='resnet', depth=50), 1000, IMAGENET, 25_557_032),
  (dict(name='resnet', depth=101), 1000, IMAGENET, 44_549_160),
  (dict(name='vgg11'), 1000, IMAGENET, 132_863_336),
  (dict(name='vgg11', batch_norm=True), 1000, IMAGENET, 132_868_840),
  (dict(name='alexnet'), 1000, IMAGENET, 61_100_840),
  # ResNet-101 for CIFAR-10. In the stem, 64 filters have 3x3x3 weights instead
  # of 7x7x3: 64 (147 - 27) = 7,680 fewer. In the head, 990 classes with 2,048
  # weights and a bias each are missing: 2,028,510 fewer.
  # 44,549,160 - 7,680 - 2,028,510.
  (dict(name='resnet', depth=101, stem='cifar'), 10, CIFAR, 42_512_970),
  # VGG-11 for CIFAR-100: 900 classes with 4,096 weights and a bias are missing.
  # 132,863,336 - 900 * 4,097.
  (dict(name='vgg11'), 100, CIFAR, 129_176_036),
  # The paper's Transformer. Embedding and last layer, with biases, of the
  # 28,782 words of WikiText-2. A layer: 200 to 600 and 200 to 200 for
  # attention, 200 to 200 twice for the MLP, two layer norms.
  (
    dict(name='transformer'),
    28_782,
    TEXT,
    28_782 * 401 + 2 * (201 * 600 + 3 * 201 * 200 + 2 * 400),
  ),
  # The decoder, without biases. A layer: 128 to 384 and 128 to 128 for
  # attention, 128 to 344 twice and back for the MLP, two norm scales.
  (
    dict(name='decoder'),
    256,
    TEXT,
    2 * 256 * 128 + 128 + 4 * (128 * 512 + 3 * 128 * 344 + 2 * 128),
  ),
]


def example(shape, batch=1):
  """Random images of a shape, or token sequences of length 12."""
  rng = np.random.default_rng(0)
  if shape is TEXT:
    return jnp.asarray(rng.integers(20, size=(batch, 12)), jnp.int32)
  return jnp.asarray(rng.normal(size=(batch, *shape)), jnp.float32)


def shapes(model, x):
  init = functools.partial(model.init, train=False)
  return jax.eval_shape(init, jax.random.key(0), x)


@pytest.mark.parametrize('fields, num_outputs, shape, count', COUNTS)
def test_a_model_has_the_published_number_of_parameters(
  fields, num_outputs, shape, count
):
  model = models.create_model(num_outputs=num_outputs, **fields)
  params = jax.tree.leaves(shapes(model, example(shape))['params'])
  assert sum(math.prod(p.shape) for p in params) == count


def he_fan_out(kernel):
  return math.sqrt(2 / (kernel.size / kernel.shape[-2]))


def he_fan_in(kernel):
  return math.sqrt(2 / (kernel.size / kernel.shape[-1]))


def glorot(kernel):
  return math.sqrt(2 / (kernel.shape[0] + kernel.shape[1]))


def uniform(kernel):
  del kernel
  return 0.1 / math.sqrt(3)  # In [-0.1, 0.1].


INITIAL = [
  ('resnet', (), 'Conv_0', he_fan_out),
  ('resnet', ('Block_7',), 'Conv_1', he_fan_out),
  ('vgg11', (), 'Conv_7', he_fan_out),
  ('vgg11', (), 'Dense_1', he_fan_in),
  ('alexnet', (), 'Conv_4', he_fan_out),
  ('alexnet', (), 'Dense_1', he_fan_in),
  ('transformer', ('CausalAttention_1',), 'qkv', glorot),
  ('transformer', (), 'Dense_0', glorot),
  ('transformer', (), 'Embed_0', uniform),
  ('transformer', (), 'Dense_4', uniform),
]


@pytest.mark.parametrize('name, scope, layer, deviation', INITIAL)
def test_initial_kernels_have_the_published_standard_deviation(
  name, scope, layer, deviation
):
  narrow = dict(mlp_dim=512) if name in ('vgg11', 'alexnet') else {}
  model = models.create_model(name, 50, **narrow)
  x = example(TEXT if name == 'transformer' else CIFAR)
  if name == 'alexnet':
    x = example((64, 64, 3))

  @jax.jit  # Compiles only the computation of the result.
  def init(key):
    params = model.init(key, x, train=False)['params']
    for module in scope:
      params = params[module]
    return jax.tree.leaves(params[layer])[-1]

  kernel = np.float64(init(jax.random.key(0)))
  assert kernel.mean() == pytest.approx(0, abs=0.05 * kernel.std())
  assert kernel.std() == pytest.approx(deviation(kernel), rel=0.05)


DECODER = dict(embed_dim=16, mlp_dim=8, num_layers=2, dropout=0.5)
VGG = dict(name='vgg11', num_filters=2, mlp_dim=8)
SMALL = {
  'convnet': (dict(name='convnet', num_filters=4), (8, 8, 1)),
  'resnet, basic': (
    dict(name='resnet', num_filters=4, stem='cifar'),
    (8, 8, 3),
  ),
  'resnet, bottleneck': (
    dict(name='resnet', depth=50, num_filters=2),
    (32, 32, 3),
  ),
  'vgg11': (dict(VGG, pool_size=2, dropout=0.5), (32, 32, 1)),
  'vgg11, normalized': (
    dict(VGG, pool_size=1, batch_norm=True, dropout=0.5),
    (32, 32, 1),
  ),
  'alexnet': (
    dict(name='alexnet', num_filters=2, mlp_dim=8, dropout=0.5),
    (64, 64, 3),
  ),
  'transformer': (
    dict(name='transformer', embed_dim=8, mlp_dim=8, dropout=0.5),
    TEXT,
  ),
  'decoder': (dict(DECODER, name='decoder'), TEXT),
}
WITH_DROPOUT = [name for name, (f, _) in SMALL.items() if 'dropout' in f]
WITH_BATCH_NORM = ['resnet, basic', 'resnet, bottleneck', 'vgg11, normalized']


@functools.cache
def small(name):
  """A model, random variables and a batch of four."""
  fields, shape = SMALL[name]
  model = models.create_model(num_outputs=20, **fields)
  x = example(shape, batch=4)
  return model, random_variables(model, x), x


@functools.cache
def applied(name, train):
  """The compiled `(variables, x, key) -> scores, model state` of a model."""
  model, _, _ = small(name)

  def apply(variables, x, key):
    rngs = {'dropout': key}
    return model.apply(
      variables, x, train=train, rngs=rngs, mutable=['batch_stats']
    )

  return jax.jit(apply, compiler_options=UNOPTIMIZED)


KEY = jax.random.key(1)


@pytest.mark.parametrize(
  'name',
  slow_but(('convnet', 'resnet, basic', 'transformer', 'decoder'), SMALL),
)
def test_in_bfloat16_parameters_stay_float32_and_scores_stay_close(name):
  _, variables, x = small(name)
  assert {p.dtype.name for p in jax.tree.leaves(variables)} == {'float32'}
  exact, _ = applied(name, False)(variables, x, KEY)
  fields = SMALL[name][0] | {'dtype': 'bfloat16'}
  rounded = models.create_model(num_outputs=20, **fields)
  leaves = jax.tree.leaves(shapes(rounded, x))
  assert {p.dtype.name for p in leaves} == {'float32'}
  apply = functools.partial(rounded.apply, train=False)
  scores = jax.jit(apply, compiler_options=UNOPTIMIZED)(variables, x)
  assert scores.dtype == jnp.bfloat16
  error = np.abs(np.float32(scores) - exact).max() / np.abs(exact).max()
  assert 0 < error < 0.1


@pytest.mark.parametrize(
  'name', slow_but(('vgg11, normalized', 'decoder'), WITH_DROPOUT)
)
def test_dropout_is_active_only_in_training(name):
  _, variables, x = small(name)

  def scores(key, train):
    return applied(name, train)(variables, x, key)[0]

  one, other = jax.random.split(KEY)
  np.testing.assert_array_equal(scores(one, False), scores(other, False))
  np.testing.assert_array_equal(scores(one, True), scores(one, True))
  assert (scores(one, True) != scores(other, True)).any()


@pytest.mark.parametrize(
  'name', slow_but(('resnet, basic', 'vgg11, normalized'), WITH_BATCH_NORM)
)
def test_batch_statistics_move_a_tenth_of_the_way_only_in_training(name):
  _, variables, x = small(name)
  _, state = applied(name, False)(variables, x, KEY)
  before = variables['batch_stats']
  jax.tree.map(np.testing.assert_array_equal, state['batch_stats'], before)
  _, state = applied(name, True)(variables, x, KEY)
  start = before['BatchNorm_0']
  moved = state['batch_stats']['BatchNorm_0']
  kernel = variables['params']['Conv_0']['kernel']
  inputs = jax.lax.conv_general_dilated(
    x,
    kernel,
    (2, 2) if name == 'resnet, bottleneck' else (1, 1),
    [(kernel.shape[0] // 2,) * 2] * 2,
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )
  if 'bias' in variables['params']['Conv_0']:
    inputs += variables['params']['Conv_0']['bias'][None, None, None]
  for statistic in ('mean', 'var'):
    batch = getattr(np, statistic)(np.asarray(inputs), axis=(0, 1, 2))
    np.testing.assert_allclose(
      moved[statistic], 0.9 * start[statistic] + 0.1 * batch, atol=1e-5
    )


def test_the_data_set_determines_the_number_of_classes():
  with pytest.raises(ConfigError, match=r'\.num_classes=9: convnet has no num'):
    models.create_model('convnet', 10, num_classes=9)
