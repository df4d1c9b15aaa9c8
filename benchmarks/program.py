"""The trainer's step, compiled, with a state and a batch on the devices."""

import time
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import optax

from selsync_jax.devices import mappers
from selsync_jax.models import tasks
from selsync_jax.sync.strategy import Strategy
from selsync_jax.training.step import init_state
from selsync_jax.training.step import train_step


class Program(NamedTuple):
  """A compiled training step and its arguments.

  Attributes:
    step: of all workers; it consumes the state.
    state: before the first step.
    batch: of every step.
    parameters: of one worker's model.
    flops: floating-point operations of a step, as XLA counts them before it
      optimizes. Later it could not count what calls a library. Nothing is
      counted twice for being computed again in the backward pass.
    compiled_in: seconds.
  """

  step: jax.stages.Compiled
  state: Any
  batch: Any
  parameters: int
  flops: float
  compiled_in: float

  @property
  def bytes(self) -> int:
    """What the step needs on a device, as XLA has planned it."""
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
  mapper: mappers.Mapper = 'vmap',
  seed: int = 0,
) -> Program:
  """The trainer's step, with the same batch for each of `count` workers."""
  task = task_of(batch)
  example = {name: array[:1] for name, array in batch.items()}
  variables = tasks.init(model, task, example, jax.random.key(0))
  one = init_state(*variables, strategy, optimizer)
  parameters = sum(leaf.size for leaf in jax.tree.leaves(one.params))
  state, batches = (
    mappers.place(mappers.replicate(tree, count), mapper)
    for tree in (one, batch)
  )

  def lowered(model):
    step = train_step(tasks.train_loss(model, task), strategy, optimizer, seed)
    mapped = mappers.map_workers(step, mapper, donate=(0,))
    return mapped.lower(state, batches)

  program, plain = lowered(model), as_counted(model)
  counted = program if plain == model else lowered(plain)
  began = time.perf_counter()
  compiled = program.compile()
  return Program(
    step=compiled,
    state=state,
    batch=batches,
    parameters=parameters,
    flops=counted.cost_analysis()['flops'],
    compiled_in=time.perf_counter() - began,
  )


def task_of(batch: dict[str, np.ndarray]) -> tasks.Task:
  """Classification of images, or language modeling."""
  name = 'classification' if 'image' in batch else 'language_modeling'
  return tasks.TASKS[name]


def as_counted(model: nn.Module) -> nn.Module:
  """A model whose every product is counted, and counted once."""
  changed: dict[str, Any] = {'remat': False}
  if jax.default_backend() == 'gpu':
    changed['attention'] = 'xla'  # The fused kernel is not XLA's.
  return model.clone(**{k: v for k, v in changed.items() if hasattr(model, k)})
