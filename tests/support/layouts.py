"""Training of a small network with any layout of devices, for comparison."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import optax

from selsync_jax.devices.layout import Layout
from selsync_jax.devices.mappers import Mapper
from selsync_jax.models import tasks
from selsync_jax.training.step import init_state, train_step
from tests.support import compositions, programs

STEPS = 12
# Settings for presets that would hardly synchronize in 12 steps.
METHODS = compositions.PRESETS | {
  'selsync': ('selsync', {'delta': 0.1}),
  'streaming_diloco': ('streaming_diloco', {'period': 8}),
}


class Net(nn.Module):
  """A perceptron whose workers differ in batch statistics and dropout."""

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
    state: state after the last step, on the host.
    synced: by step, whether the workers synchronized.
    program: the compiled step, if a worker has several devices.
  """

  state: Any
  synced: list[bool]
  program: str


def begin(method: str, mapper: Mapper) -> tuple[Any, Any]:
  """Returns a mapped step of a method of `METHODS`, and the first state."""
  task = tasks.TASKS['classification']
  strategy = compositions.create(*METHODS[method])
  sgd = optax.sgd(0.05, momentum=0.9)  # Adam amplifies zero gradients.
  optimizer = compositions.OPTIMIZERS.get(method, sgd)
  example = jax.tree.map(lambda x: x[0, :1], next(batches(mapper.workers)))
  model = tasks.init(Net(), task, example, jax.random.key(0))
  start = init_state(*model, strategy, optimizer)
  loss = tasks.train_loss(Net(), task)
  step = mapper.map_workers(train_step(loss, strategy, optimizer, 0))
  return step, mapper.replicate(lambda: start)


@functools.cache
def train(method: str, mapper: Mapper) -> Run:
  """Trains with a method of `METHODS`.

  Compiled programs are dropped: a process has room for the code of 100.
  """
  step, state = begin(method, mapper)
  every, program = [*batches(mapper.workers)], ''
  if isinstance(mapper, Layout):
    places = jax.tree.map(lambda x: mapper.batch_sharding(x.shape), every[0])
    every = [jax.device_put(batch, places) for batch in every]
    step = step.__wrapped__.lower(state, every[0]).compile()
    program = step.as_text()
  synced = []
  for batch in every:
    state, metrics = step(state, batch)
    synced.append(bool(np.asarray(metrics['synced'])[0]))
  return Run(jax.device_get(state), synced, program)


def difference(one: Run, other: Run, share: float = 1.0) -> float:
  """The largest difference in parameters and statistics between two runs.

  Args:
    one: a run.
    other: another run.
    share: share of the values to compare; the largest differences are left out.
  """
  pairs = zip(
    *(jax.tree.leaves(r.state.shared) for r in (one, other)), strict=True
  )
  each = np.concatenate([np.abs(a - b).ravel() for a, b in pairs])
  return float(np.quantile(each, share))


def crossings(method: str, layout: Layout) -> list[programs.Sent]:
  """Elements that one device sends to other workers in the compiled step."""
  text = train(method, layout).program
  sent = programs.collectives(text, layout.devices_per_worker)
  return [message for message in sent if message.crosses]
