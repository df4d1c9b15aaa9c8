"""Shapes of a decoder's state, and its bytes on a device."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from selsync_jax import methods
from selsync_jax.models import tasks
from selsync_jax.training.step import init_state, train_step
from tests.support import workloads


def decoder(workload: workloads.Workload) -> tuple[Any, Any, Any]:
  """One worker's step, and the shapes of its state and of its batch."""
  model = workload.create_model('bfloat16')
  task = tasks.TASKS['language_modeling']
  strategy = methods.create_strategy('selsync', methods.Context(1, 0))
  optimizer = optax.adamw(1e-3)
  tokens = jax.ShapeDtypeStruct((workload.examples, *workload.shape), jnp.int32)
  batch = {
    'inputs': tokens,
    'targets': tokens,
    'mask': jax.ShapeDtypeStruct((workload.examples,), jnp.bool),
  }
  state = jax.eval_shape(
    lambda variables: init_state(*variables, strategy, optimizer),
    tasks.init_shapes(model, task, batch),
  )
  loss = tasks.train_loss(model, task)
  return train_step(loss, strategy, optimizer, 0), state, batch


def held(states: Any) -> int:
  """Bytes of arrays on one device, from their shapes and shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(states)
  )
