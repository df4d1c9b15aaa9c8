"""Every method, with workers of several devices, next to workers of one.

  python -m benchmarks.layouts
  python -m benchmarks.layouts --methods bsp selsync --layouts 2x2x2

Trains a small network with batch norm, dropout, and batches that are not full,
on virtual CPU devices: once under pmap, and once with each layout (workers x
data x fsdp). For each method and layout it prints by how much parameters and
batch statistics differ after 12 steps, whether the workers synchronized at the
same steps, and the elements that one device sends to other workers in the
compiled step: in the branch of a synchronization, and outside it. Writes
layouts.json.
"""

import argparse
import functools
import json
import os
import pathlib
from typing import Any, NamedTuple

os.environ.setdefault('PJRT_NPROC', '16')

import flax.linen as nn
import jax
import numpy as np
import optax

from selsync_jax.devices.layout import Layout
from selsync_jax.devices.mapper import Mapper
from selsync_jax.devices.mapper import split
from selsync_jax.devices.mappers import Pmap
from selsync_jax.models import tasks
from selsync_jax.training.step import init_state
from selsync_jax.training.step import train_step
from tests import compositions
from tests import programs

STEPS = 12
LAYOUTS = ('4x1x1', '4x2x1', '4x1x2', '2x2x2', '2x1x4')
# Where the presets would hardly synchronize in 12 steps.
METHODS = compositions.PRESETS | {
  'selsync': ('selsync', {'delta': 0.1}),
  'streaming_diloco': ('streaming_diloco', {'period': 8}),
}


class Net(nn.Module):
  """A perceptron with what makes workers differ: statistics and dropout."""

  @nn.compact
  def __call__(self, x, *, train):
    """Logits of images."""
    x = nn.Dense(64)(x.reshape(x.shape[0], -1))
    x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
    x = nn.Dense(36)(nn.Dropout(0.2, deterministic=not train)(x))
    return nn.Dense(10)(x)


def batches(workers: int):
  """Batches whose empty slots differ between a worker's devices."""
  rng = np.random.default_rng(0)
  for _ in range(STEPS):
    label = rng.integers(10, size=(workers, 16))
    image = rng.normal(size=(workers, 16, 8, 8, 1))
    mask = np.ones((workers, 16), bool)
    mask[:, -3:] = mask[0, :2] = False
    yield {
      'image': (image + label[..., None, None, None]).astype(np.float32),
      'label': label.astype(np.int32),
      'mask': mask,
    }


class Run(NamedTuple):
  """A few steps of training.

  Attributes:
    state: after the last step, on the host.
    synced: by step, whether the workers synchronized.
    step: the mapped step.
    arguments: of a step, on the devices.
  """

  state: Any
  synced: list[bool]
  step: Any
  arguments: tuple[Any, Any]


@functools.cache
def train(method: str, mapper: Mapper) -> Run:
  """Trains with a method of `METHODS`."""
  task = tasks.TASKS['classification']
  strategy = compositions.create(*METHODS[method])
  optimizer = optax.sgd(0.05, momentum=0.9)  # Adam amplifies zero gradients.
  example = jax.tree.map(lambda x: x[0, :1], next(batches(mapper.workers)))
  model = tasks.init(Net(), task, example, jax.random.key(0))
  start = init_state(*model, strategy, optimizer)
  state = mapper.create(lambda: start)
  loss = tasks.train_loss(Net(), task)
  step = mapper.map_workers(train_step(loss, strategy, optimizer, 0))
  synced = []
  for batch in batches(mapper.workers):
    state, metrics = step(state, batch)
    synced.append(bool(np.asarray(metrics['synced'])[0]))
  return Run(jax.device_get(state), synced, step, (state, batch))


def difference(one: Run, other: Run, share: float = 1.0) -> float:
  """By how much parameters and statistics of two runs differ at most.

  Args:
    one: a run.
    other: another one.
    share: of the values that are compared; the largest differences are not.
  """
  pairs = zip(
    *(jax.tree.leaves(r.state.shared) for r in (one, other)), strict=True
  )
  each = np.concatenate([np.abs(a - b).ravel() for a, b in pairs])
  return float(np.quantile(each, share))


def crossings(method: str, layout: Layout) -> list[programs.Sent]:
  """What leaves a worker in the compiled step, from one of its devices."""
  run = train(method, layout)
  state, batch = run.arguments
  batch = split(batch, layout.batch_sharding)
  text = run.step.__wrapped__.lower(state, batch).compile().as_text()
  sent = programs.collectives(text, layout.devices_per_worker)
  return [message for message in sent if message.crosses]


def row(method: str, layout: Layout) -> dict[str, Any]:
  """The figures of a method and a layout."""
  pmap = train(method, Pmap(layout.workers))
  mesh = train(method, layout)
  sent = crossings(method, layout)
  return {
    'difference': difference(pmap, mesh),
    'flags': pmap.synced == mesh.synced,
    'synced': sum(mesh.synced),
    'inside': [m[:3] for m in sent if m.conditional],
    'outside': [m[:3] for m in sent if not m.conditional],
  }


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--methods', nargs='+', default=[*METHODS])
  parser.add_argument('--layouts', nargs='+', default=LAYOUTS)
  parser.add_argument('--out', default='layouts.json')
  options = parser.parse_args()
  jax.config.update('jax_num_cpu_devices', 16)
  print(f'{"method":20}{"layout":>7}{"differ by":>11}{"flags":>7}  sends')
  rows = {}
  for method in options.methods:
    for name in options.layouts:
      figures = row(method, Layout(*map(int, name.split('x'))))
      rows[f'{method} {name}'] = figures
      sent = {
        where: ', '.join(f'{k} {n} {d}' for k, d, n in figures[where]) or '-'
        for where in ('inside', 'outside')
      }
      print(
        f'{method:20}{name:>7}{figures["difference"]:11.1e}'
        f'{"equal" if figures["flags"] else "differ":>7}'
        f'  {sent["inside"]}; outside: {sent["outside"]}',
        flush=True,
      )
    train.cache_clear()  # Room for code is limited, too.
    jax.clear_caches()
  pathlib.Path(options.out).write_text(json.dumps(rows, indent=2) + '\n')


if __name__ == '__main__':
  main()
