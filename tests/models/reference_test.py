"""The models against PyTorch, with the same weights."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selsync_jax import models
from selsync_jax.models.convolution import adaptive_avg_pool
from tests.support import torch_networks
from tests.support.random_weights import random_variables, UNOPTIMIZED

torch, nn = torch_networks.torch, torch_networks.nn

KINDS = {
  nn.Conv2d: 'Conv',
  nn.BatchNorm2d: 'BatchNorm',
  nn.LayerNorm: 'LayerNorm',
  nn.RMSNorm: 'RMSNorm',
  nn.Linear: 'Dense',
  nn.Embedding: 'Embed',
}


def matched_layers(module, params, stats=None):
  """Yields PyTorch layers with our parameters and statistics for them."""
  stats = stats or {}
  seen = collections.Counter()

  def visit(module):
    if isinstance(module, torch_networks.BasicBlock):
      name = f'Block_{seen["Block"]}'
      seen['Block'] += 1
      yield from matched_layers(module, params[name], stats[name])
      return
    if isinstance(module, torch_networks.DecoderLayer):
      name = f'CausalAttention_{seen["CausalAttention"]}'
      seen['CausalAttention'] += 1
      yield module.qkv, params[name]['qkv'], {}
      yield module.out, params[name]['out'], {}
      for name, child in module.named_children():
        if name not in ('qkv', 'out'):
          yield from visit(child)
      return
    if isinstance(module, nn.MultiheadAttention):
      name = f'CausalAttention_{seen["CausalAttention"]}'
      seen['CausalAttention'] += 1
      yield module, params[name], {}
      return
    if type(module) in KINDS:
      kind = KINDS[type(module)]
      name = f'{kind}_{seen[kind]}'
      seen[kind] += 1
      yield module, params[name], stats.get(name, {})
    for child in module.children():
      yield from visit(child)

  for child in module.children():
    yield from visit(child)


def weight(params):
  """Our kernel in PyTorch's layout: outputs first."""
  if 'kernel' in params:
    kernel = params['kernel']
    axes = (3, 2, 0, 1) if kernel.ndim == 4 else (1, 0)
    return torch.tensor(kernel.transpose(axes))
  return torch.tensor(params['scale' if 'scale' in params else 'embedding'])


def copy_weights(variables, network):
  """Copies our weights to a PyTorch network, each exactly once."""
  copied = 0
  stats = variables.get('batch_stats')
  with torch.no_grad():
    for layer, params, running in matched_layers(
      network, variables['params'], stats
    ):
      if isinstance(layer, nn.MultiheadAttention):
        layer.in_proj_weight.copy_(weight(params['qkv']))
        layer.in_proj_bias.copy_(torch.tensor(params['qkv']['bias']))
        layer.out_proj.weight.copy_(weight(params['out']))
        layer.out_proj.bias.copy_(torch.tensor(params['out']['bias']))
      else:
        layer.weight.copy_(weight(params))
        if 'bias' in params:
          layer.bias.copy_(torch.tensor(params['bias']))
      if running:
        layer.running_mean.copy_(torch.tensor(running['mean']))
        layer.running_var.copy_(torch.tensor(running['var']))
      copied += sum(p.size for p in jax.tree.leaves((params, running)))
  assert copied == sum(p.size for p in jax.tree.leaves(variables))


def assert_agree(model, reference, x, *, train=False):
  variables = random_variables(model, x)
  copy_weights(variables, reference)
  apply = jax.jit(
    lambda v, x: model.apply(v, x, train=train, mutable=['batch_stats'])[0],
    compiler_options=UNOPTIMIZED,
  )
  scores = apply(variables, x)
  if x.ndim == 4:
    x = x.transpose(0, 3, 1, 2)
  with torch.no_grad():
    expected = reference.train(train)(torch.tensor(np.asarray(x))).numpy()
  assert np.ptp(expected, axis=-1).min() > 0.01
  np.testing.assert_allclose(
    scores, expected, atol=1e-4 * np.abs(expected).max()
  )


def images(batch, side):
  rng = np.random.default_rng(0)
  return rng.normal(size=(batch, side, side, 3)).astype(np.float32)


@pytest.mark.parametrize('size', [1, 2, 3, 5, 7, 12])
def test_adaptive_average_pooling_agrees_with_pytorch(size):
  x = images(2, 7)
  pool = nn.AdaptiveAvgPool2d(size)
  expected = pool(torch.tensor(x.transpose(0, 3, 1, 2))).numpy()
  result = adaptive_avg_pool(jnp.asarray(x), size)
  np.testing.assert_allclose(result, expected.transpose(0, 2, 3, 1), atol=1e-6)


TOKENS = np.random.default_rng(0).integers(50, size=(3, 9)).astype(np.int32)
BASIC = dict(depth=18, stem='imagenet', num_filters=4)
BOTTLENECK = dict(depth=50, stem='cifar', num_filters=4)
VGG = dict(num_filters=4, mlp_dim=16, pool_size=2)
TEXT = dict(num_layers=2, embed_dim=12, num_heads=2, mlp_dim=10)
CASES = [  # The reference, fields and inputs, and whether the model trains.
  ('resnet', BASIC, images(4, 65), False),
  ('resnet', BASIC, images(4, 65), True),
  ('resnet', BOTTLENECK, images(4, 16), False),
  ('resnet', BOTTLENECK, images(4, 16), True),
  *(
    ('vgg11', VGG | dict(batch_norm=norm), images(2, side), False)
    for norm in (False, True)
    for side in (32, 100)
  ),
  ('alexnet', VGG | dict(pool_size=6), images(2, 127), False),
  ('transformer', TEXT, TOKENS, False),  # PyTorch's example.
  ('decoder', TEXT, TOKENS, False),  # LLaMA.
]


@pytest.mark.parametrize(
  'name, fields, x, train',
  [
    pytest.param(*each, marks=[pytest.mark.slow] * (each[1] is BOTTLENECK))
    for each in CASES
  ],
)
def test_a_model_agrees_with_pytorchs(name, fields, x, train):
  outputs = 50 if x is TOKENS else 7
  reference = getattr(torch_networks, name)(outputs, **fields)
  model = models.create_model(name, outputs, **fields)
  assert_agree(model, reference, x, train=train)
