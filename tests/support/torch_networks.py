"""Reference networks in PyTorch.

They follow the structure documented by torchvision, by PyTorch's
word-language-model example, and by LLaMA's authors. Layers are defined in the
order in which our models call them, so that weights can be matched by kind and
order.
"""

import math

import pytest

torch = pytest.importorskip(
  'torch', reason="needs the extra 'reference' (torch)"
)
nn = torch.nn


class BasicBlock(nn.Module):
  def __init__(self, channels, filters, stride):
    super().__init__()
    self.body = nn.Sequential(
      nn.Conv2d(channels, filters, 3, stride, 1, bias=False),
      nn.BatchNorm2d(filters),
      nn.ReLU(),
      nn.Conv2d(filters, filters, 3, 1, 1, bias=False),
      nn.BatchNorm2d(filters),
    )
    self.shortcut = shortcut(channels, filters, stride)

  def forward(self, x):
    return torch.relu(self.body(x) + self.shortcut(x))


class Bottleneck(BasicBlock):
  def __init__(self, channels, filters, stride):
    nn.Module.__init__(self)
    out = 4 * filters
    self.body = nn.Sequential(
      nn.Conv2d(channels, filters, 1, bias=False),
      nn.BatchNorm2d(filters),
      nn.ReLU(),
      nn.Conv2d(filters, filters, 3, stride, 1, bias=False),
      nn.BatchNorm2d(filters),
      nn.ReLU(),
      nn.Conv2d(filters, out, 1, bias=False),
      nn.BatchNorm2d(out),
    )
    self.shortcut = shortcut(channels, out, stride)


def shortcut(channels, out, stride):
  if (channels, stride) == (out, 1):
    return nn.Identity()
  return nn.Sequential(
    nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
  )


RESNETS = {
  18: (BasicBlock, (2, 2, 2, 2)),
  50: (Bottleneck, (3, 4, 6, 3)),
  101: (Bottleneck, (3, 4, 23, 3)),
}


def resnet(num_classes, depth, stem, num_filters):
  block, stages = RESNETS[depth]
  if stem == 'imagenet':
    layers = [nn.Conv2d(3, num_filters, 7, 2, 3, bias=False)]
  else:
    layers = [nn.Conv2d(3, num_filters, 3, 1, 1, bias=False)]
  layers += [nn.BatchNorm2d(num_filters), nn.ReLU()]
  if stem == 'imagenet':
    layers.append(nn.MaxPool2d(3, 2, 1))
  channels = num_filters
  for stage, num_blocks in enumerate(stages):
    filters = num_filters * 2**stage
    for i in range(num_blocks):
      stride = 2 if stage > 0 and i == 0 else 1
      layers.append(block(channels, filters, stride))
      channels = filters * (4 if block is Bottleneck else 1)
  return nn.Sequential(
    *layers,
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(channels, num_classes),
  )


class FlattenChannelsLast(nn.Module):
  """Flattens with channels last, so that dense weights can be copied."""

  def forward(self, x):
    return x.permute(0, 2, 3, 1).flatten(1)


def vgg11(num_classes, batch_norm, num_filters, mlp_dim, pool_size):
  layers, channels = [], 3
  for entry in (1, 'M', 2, 'M', 4, 4, 'M', 8, 8, 'M', 8, 8, 'M'):
    if entry == 'M':
      layers.append(nn.MaxPool2d(2, 2))
      continue
    filters = entry * num_filters
    layers.append(nn.Conv2d(channels, filters, 3, padding=1))
    layers += [nn.BatchNorm2d(filters)] if batch_norm else []
    layers.append(nn.ReLU())
    channels = filters
  return nn.Sequential(
    *layers,
    nn.AdaptiveAvgPool2d(pool_size),
    FlattenChannelsLast(),
    nn.Linear(channels * pool_size**2, mlp_dim),
    nn.ReLU(),
    nn.Dropout(),
    nn.Linear(mlp_dim, mlp_dim),
    nn.ReLU(),
    nn.Dropout(),
    nn.Linear(mlp_dim, num_classes),
  )


def alexnet(num_classes, num_filters, mlp_dim, pool_size):
  return nn.Sequential(
    nn.Conv2d(3, num_filters, 11, stride=4, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(3, 2),
    nn.Conv2d(num_filters, 3 * num_filters, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(3, 2),
    nn.Conv2d(3 * num_filters, 6 * num_filters, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(6 * num_filters, 4 * num_filters, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(4 * num_filters, 4 * num_filters, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(3, 2),
    nn.AdaptiveAvgPool2d(pool_size),
    FlattenChannelsLast(),
    nn.Dropout(),
    nn.Linear(4 * num_filters * pool_size**2, mlp_dim),
    nn.ReLU(),
    nn.Dropout(),
    nn.Linear(mlp_dim, mlp_dim),
    nn.ReLU(),
    nn.Linear(mlp_dim, num_classes),
  )


class WordLanguageModel(nn.Module):
  """The `TransformerModel` of PyTorch's word-language-model example."""

  def __init__(self, vocab_size, num_layers, embed_dim, num_heads, mlp_dim):
    super().__init__()
    self.embed = nn.Embedding(vocab_size, embed_dim)
    layer = nn.TransformerEncoderLayer(
      embed_dim, num_heads, mlp_dim, dropout=0.2, batch_first=True
    )
    self.encoder = nn.TransformerEncoder(
      layer, num_layers, enable_nested_tensor=False
    )
    self.decode = nn.Linear(embed_dim, vocab_size)
    self.embed_dim = embed_dim

  def forward(self, x):
    time, device = x.shape[1], x.device
    position = torch.arange(time, device=device).unsqueeze(1)
    frequency = torch.exp(
      torch.arange(0, self.embed_dim, 2, device=device)
      * (-math.log(10000.0) / self.embed_dim)
    )
    angle = position * frequency
    table = torch.stack([torch.sin(angle), torch.cos(angle)], -1).flatten(1)
    mask = nn.Transformer.generate_square_subsequent_mask(time, device=device)
    x = self.embed(x) * math.sqrt(self.embed_dim) + table
    return self.decode(self.encoder(x, mask=mask, is_causal=True))


transformer = WordLanguageModel


class DecoderLayer(nn.Module):
  """Rotary attention and SwiGLU, each after RMSNorm, without biases."""

  def __init__(self, embed_dim, num_heads, mlp_dim):
    super().__init__()
    self.num_heads = num_heads
    self.norm = nn.RMSNorm(embed_dim, eps=1e-6)
    self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
    self.out = nn.Linear(embed_dim, embed_dim, bias=False)
    self.mlp_norm = nn.RMSNorm(embed_dim, eps=1e-6)
    self.gate = nn.Linear(embed_dim, mlp_dim, bias=False)
    self.up = nn.Linear(embed_dim, mlp_dim, bias=False)
    self.down = nn.Linear(mlp_dim, embed_dim, bias=False)

  def forward(self, x):
    batch, time, embed_dim = x.shape
    depth = embed_dim // self.num_heads
    qkv = self.qkv(self.norm(x)).view(batch, time, 3, self.num_heads, depth)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    y = nn.functional.scaled_dot_product_attention(
      rotary(query), rotary(key), value, is_causal=True
    )
    x = x + self.out(y.transpose(1, 2).reshape(batch, time, embed_dim))
    y = self.mlp_norm(x)
    return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def rotary(x):
  """Rotates features i and i + depth/2 of [batch, heads, time, depth]."""
  time, depth = x.shape[2:]
  frequency = 10_000.0 ** (-torch.arange(0, depth, 2, device=x.device) / depth)
  angle = torch.arange(time, device=x.device)[:, None] * frequency
  cos, sin = torch.cos(angle), torch.sin(angle)
  first, second = x.float().chunk(2, dim=-1)
  rotated = [first * cos - second * sin, second * cos + first * sin]
  return torch.cat(rotated, dim=-1).to(x.dtype)


def decoder(vocab_size, num_layers, embed_dim, num_heads, mlp_dim):
  """LLaMA, like in its authors' code."""
  layers = [
    DecoderLayer(embed_dim, num_heads, mlp_dim) for _ in range(num_layers)
  ]
  return nn.Sequential(
    nn.Embedding(vocab_size, embed_dim),
    *layers,
    nn.RMSNorm(embed_dim, eps=1e-6),
    nn.Linear(embed_dim, vocab_size, bias=False),
  )
