"""The training steps that the benchmarks compare, and their timing.

Each is the README's loop: local gradients, an optax chain, and one line that
may synchronize. They differ in the first transformation of the chain.
"""

from collections.abc import Callable
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import selsync_jax as ss
from selsync_jax import models
from selsync_jax.devices import mappers

FIRST = {
  'local step': None,
  'SelSync, no synchronization': ss.selsync(float('inf')),
  'SelSync, no synchronization, vote_delay=1': ss.selsync(
    float('inf'), vote_delay=1
  ),
  'SelSync, no synchronization, vote_every=8': ss.selsync(
    float('inf'), vote_every=8
  ),
  'SelSync, synchronization': ss.selsync(0.0),
  'BSP': ss.all_reduce(),
}


class Problem(NamedTuple):
  """The computation of a step.

  Attributes:
    params: parameters before the first step.
    loss: `loss(params, batch)`.
    batch: a worker's batch, the same at every step.
    optimizer: optimizer of the local update.
  """

  params: Any
  loss: Callable[[Any, Any], Any]
  batch: Any
  optimizer: optax.GradientTransformation


def convnet(width: int) -> Problem:
  """A convolutional network on 32 small images."""
  model = models.create_model('convnet', 10, num_filters=width)
  rng = np.random.default_rng(0)
  image = rng.normal(size=(32, 8, 8, 1)).astype(np.float32)
  label = rng.integers(10, size=32).astype(np.int32)

  def loss(params, batch):
    image, label = batch
    logits = model.apply(params, image, train=True)
    return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

  params = model.init(jax.random.key(0), image[:1], train=False)
  return Problem(params, loss, (image, label), optax.sgd(1e-3, momentum=0.9))


class Variant:
  """One kind of training step, on the local workers under pmap.

  Args:
    first: the transformation before the optimizer, if any.
    count: number of local workers.
    problem: the computation of the step.
    averages: whether a step may average, in a branch of a `lax.cond`.
  """

  def __init__(
    self, first: Any, count: int, problem: Problem, averages: bool = True
  ):
    params, loss, batch, optimizer = problem
    tx = optax.chain(first, optimizer) if first else optimizer

    def step(state, batch):
      params, opt_state = state
      grads = jax.grad(loss)(params, batch)
      updates, opt_state = tx.update(grads, opt_state, params)
      params = optax.apply_updates(params, updates)
      if averages and optax.tree.get_all_with_path(opt_state, 'sync'):
        sync = optax.tree.get(opt_state, 'sync')
        params = ss.synchronize(sync, params)
      return params, opt_state

    pmap = mappers.Pmap(count)
    self.params = sum(x.size for x in jax.tree.leaves(params))
    self.state, self._batch = (
      pmap.replicate(lambda tree=tree: tree)
      for tree in ((params, tx.init(params)), batch)
    )
    self._step = pmap.map_workers(step, donate=(0,))

  def run(self, steps: int) -> None:
    """Takes `steps` steps and waits for the last one."""
    for _ in range(steps):
      self.state = self._step(self.state, self._batch)
    jax.block_until_ready(self.state)


def time_interleaved(
  runs: dict[str, Callable[[int], None]],
  steps: int,
  rounds: int,
  align: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
  """Seconds per step of each, timed in turn so that load affects all equally.

  Args:
    runs: functions by name; each takes a number of steps.
    steps: steps per round.
    rounds: number of rounds.
    align: waits for the other processes, before and after each round.

  Returns:
    Seconds per step by name, one figure per round.
  """
  for run in runs.values():
    run(3)  # Compiles, and takes the first steps, which synchronize.
  seconds = {name: [] for name in runs}
  for _ in range(rounds):
    for name, run in runs.items():
      align()
      start = time.perf_counter()
      run(steps)
      align()
      seconds[name].append((time.perf_counter() - start) / steps)
  return seconds


def all_reduce_alone(count: int, size: int) -> Callable[[int], None]:
  """Returns `run(steps)`, which only averages one float32 buffer."""
  pmap = mappers.Pmap(count)
  mean = pmap.map_workers(ss.consensus)
  buffer = pmap.place(jnp.zeros((count, size), jnp.float32))

  def run(steps):
    for _ in range(steps):
      jax.block_until_ready(mean(buffer))

  return run
