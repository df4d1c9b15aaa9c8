"""PyTorch's training step on the workloads of `benchmarks.speed.accelerator`.

  python -m benchmarks.speed.torch_side

The models (tests/support/torch_networks.py, which the tests compare with ours),
batches, optimizers, and precision are the same: products in bfloat16 under
autocast, with float32 parameters; or TF32, XLA's default for float32 on a GPU.
Uses `torch.compile`, channels last, and fused optimizers. Writes a line of JSON
for each row.
"""

import argparse
from collections.abc import Callable
import contextlib
import json
import pathlib
import statistics
import time
from typing import Any

import numpy as np
import torch

from tests.support import torch_networks
from tests.support.workloads import Workload, WORKLOADS

DTYPES = ('bfloat16', 'float32')
ROUNDS = 5
ROUND = 0.5  # Seconds, or one step.
NETWORKS = {
  'resnet': torch_networks.resnet,
  'vgg11': torch_networks.vgg11,
  'alexnet': torch_networks.alexnet,
  'transformer': torch_networks.WordLanguageModel,
  'decoder': torch_networks.decoder,
}
DEFAULTS = {
  'vgg11': dict(batch_norm=False, pool_size=7),
  'alexnet': dict(pool_size=6),
}


def network(workload: Workload) -> torch.nn.Module:
  """A workload's model."""
  fields = DEFAULTS.get(workload.model['name'], {}) | dict(workload.model)
  name = fields.pop('name')
  fields.pop('dropout', None)  # The Transformer's is fixed.
  outputs = 'vocab_size' if workload.is_text else 'num_classes'
  return NETWORKS[name](**{outputs: workload.outputs}, **fields)


def create_optimizer(
  workload: Workload, model: torch.nn.Module
) -> torch.optim.Optimizer:
  """A workload's optimizer."""
  fields = dict(workload.optimizer)
  make = {
    'sgd': torch.optim.SGD,
    'adam': torch.optim.Adam,
    'adamw': torch.optim.AdamW,
  }[fields.pop('name')]
  fields['lr'] = fields.pop('learning_rate')
  if 'b2' in fields:
    fields['betas'] = (0.9, fields.pop('b2'))
  return make(model.parameters(), fused=True, **fields)


def create_step(
  workload: Workload, dtype: str, device: str
) -> Callable[[], None]:
  """Returns a function that takes a step."""
  layout: Any = dict(device=device)
  if not workload.is_text:
    layout['memory_format'] = torch.channels_last
  model = network(workload).to(**layout)
  optimizer = create_optimizer(workload, model)
  examples = workload.examples_of(workload.examples)
  if workload.is_text:
    inputs, targets = examples['inputs'], examples['targets']
  else:
    inputs, targets = examples['image'], examples['label']
    inputs = np.moveaxis(inputs / np.float32(255), 3, 1)
  x = torch.from_numpy(np.ascontiguousarray(inputs)).to(**layout)
  y = torch.from_numpy(targets).long().to(device)
  precision = contextlib.nullcontext()
  if dtype == 'bfloat16':
    precision = torch.autocast(device, torch.bfloat16)

  @torch.compile
  def loss():
    with precision:
      scores = model(x)
    return torch.nn.functional.cross_entropy(
      scores.float().flatten(0, -2), y.flatten()
    )

  def step():
    optimizer.zero_grad(set_to_none=True)
    loss().backward()
    optimizer.step()

  return step


def measure(workload: Workload, dtype: str, device: str) -> dict[str, Any]:
  """The row of a workload."""

  def run(steps):
    for _ in range(steps):
      step()
    if device == 'cuda':
      torch.cuda.synchronize()
    return time.perf_counter()

  step = create_step(workload, dtype, device)
  began = time.perf_counter()
  compiled = run(1)
  warm = run(2)
  if device == 'cuda':
    torch.cuda.reset_peak_memory_stats()
  steps = int(np.clip(ROUND / ((run(2) - warm) / 2), 1, 100))
  times = []
  for _ in range(ROUNDS):
    start = time.perf_counter()
    times.append((run(steps) - start) / steps)
  low, _, high = statistics.quantiles(times, n=4)
  middle = statistics.median(times)
  peak = torch.cuda.max_memory_allocated() if device == 'cuda' else 0
  return {
    'ms': 1e3 * middle,
    'ms_quartiles': [1e3 * low, 1e3 * high],
    'per_second': workload.examples * workload.units / middle,
    'unit': 'tokens' if workload.is_text else 'images',
    'bytes': peak,
    'compiled_in': compiled - began,
    'torch': torch.__version__,
    'device': 'gpu' if device == 'cuda' else device,
  }


def main(argv: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  add = parser.add_argument
  add('--seconds', type=float, default=480.0)
  add('--workloads', nargs='+', default=[*WORKLOADS], choices=WORKLOADS)
  add('--tiny', action='store_true', help='small models, for a CPU')
  add('--out', type=pathlib.Path, default='torch.jsonl')
  options = parser.parse_args(argv)
  torch.set_float32_matmul_precision('high')  # TF32.
  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  end, longest = time.monotonic() + options.seconds, 0.0
  for dtype in DTYPES:
    for name in options.workloads:
      workload = WORKLOADS[name]
      workload = workload.tiny() if options.tiny else workload
      labels = dict(name=name, dtype=dtype, batch=workload.examples)
      start = time.monotonic()
      row = {'not_measured': 'no time left'}
      if end - start > longest:
        row = attempt(workload, dtype, device)
        longest = max(longest, time.monotonic() - start)
      with options.out.open('a') as out:
        out.write(json.dumps(labels | row) + '\n')


def attempt(workload: Workload, dtype: str, device: str) -> dict[str, Any]:
  """The row of a workload, or the reason for having none."""
  try:
    return measure(workload, dtype, device)
  except Exception as error:  # The other rows are still wanted.
    text = ' '.join(str(error).split())[:160]
    return {'not_measured': f'{type(error).__name__}: {text}'}
  finally:
    torch.compiler.reset()
    if device == 'cuda':
      torch.cuda.empty_cache()


if __name__ == '__main__':
  main()
