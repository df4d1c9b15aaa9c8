"""The trainer's step, compiled, with a state and a batch on the devices."""

import time
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax.sharding import SingleDeviceSharding
import numpy as np
import optax

from selsync_jax.devices import layout
from selsync_jax.devices.mappers import abstract, needs_devices, split
from selsync_jax.models import tasks
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.strategy import Strategy
from selsync_jax.training.step import init_state, train_step


class Program(NamedTuple):
  """A compiled training step and its arguments.

  Attributes:
    step: the step of all workers; it consumes the state.
    state: the state before the first step.
    batch: the batch of every step.
    parameters: number of parameters of one worker's model.
    flops: see `operations`; the sum over all workers on one device.
    compiled_in: seconds, with tracing.
  """

  step: jax.stages.Compiled
  state: Any
  batch: Any
  parameters: int
  flops: float | None
  compiled_in: float

  @property
  def bytes(self) -> int:
    """Memory that the step needs on a device, planned by XLA."""
    memory = self.step.memory_analysis()
    return (
      memory.argument_size_in_bytes
      + memory.temp_size_in_bytes
      + memory.output_size_in_bytes
      - memory.alias_size_in_bytes
    )


def compile_program(
  model: nn.Module,
  strategy: Strategy,
  optimizer: optax.GradientTransformation,
  batch: dict[str, np.ndarray],
  count: int = 1,
  mapper: str = 'vmap',
) -> Program:
  """The trainer's step, with the same batch for each of `count` workers."""
  task = task_of(batch)
  example = {name: array[:1] for name, array in batch.items()}
  variables = tasks.init(model, task, example, jax.random.key(0))
  one = init_state(*variables, strategy, optimizer)
  parameters = sum(leaf.size for leaf in jax.tree.leaves(one.params))
  chosen = layout.choose(mapper, count)
  state, batches = (
    chosen.replicate(lambda tree=tree: tree) for tree in (one, batch)
  )

  def create_step(model):
    return train_step(tasks.train_loss(model, task), strategy, optimizer, 0)

  began = time.perf_counter()
  mapped = chosen.map_workers(create_step(model), donate=(0,))
  compiled = mapped.lower(state, batches).compile()
  compiled_in = time.perf_counter() - began
  together = 1 if needs_devices(mapper) else count
  shapes = (abstract(tree, together) for tree in (one, batch))
  return Program(
    step=compiled,
    state=state,
    batch=batches,
    parameters=parameters,
    flops=operations(create_step(as_counted(model)), *shapes),
    compiled_in=compiled_in,
  )


def operations(step: Any, state: Any, batch: Any) -> float | None:
  """Floating-point operations of a step, counted by XLA for a CPU.

  XLA counts before it optimizes; later it could not count calls to a library.
  Work that the backward pass computes again is counted once.

  Args:
    step: the step of one worker.
    state: shapes of the workers' states.
    batch: shapes of the workers' batches.

  Returns:
    The number, or `None` if JAX has no CPU: the backends of accelerators do not
    count before they compile.
  """
  try:
    cpu = SingleDeviceSharding(jax.devices('cpu')[0])
  except RuntimeError:
    return None
  shapes = split((state, batch), lambda shape: cpu)
  mapped = jax.jit(jax.vmap(step, axis_name=AXIS))
  counted: Any = mapped.lower(*shapes).cost_analysis()
  return counted and counted['flops']


def task_of(batch: dict[str, np.ndarray]) -> tasks.Task:
  """Classification of images, or language modeling."""
  if 'image' not in batch:
    return tasks.TASKS['language_modeling']
  task = tasks.TASKS['classification']
  if batch['image'].dtype == np.uint8:
    return task._replace(prepare=lambda image: image / 255)
  return task


def as_counted(model: nn.Module) -> nn.Module:
  """A model in which every product is counted exactly once."""
  changed: dict[str, Any] = {'remat': False}
  if jax.default_backend() == 'gpu':
    changed['attention'] = 'xla'  # XLA cannot count the fused kernel.
  return model.clone(**{k: v for k, v in changed.items() if hasattr(model, k)})
