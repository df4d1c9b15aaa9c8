"""Memory per device of the decoder's training step, by layout.

  python -m benchmarks.memory
  python -m benchmarks.memory --sizes 10M 124M --layouts 2x1x4

Compiles the step ahead of time, for as many virtual devices as the layout
(workers x data x fsdp) has, and asks XLA what a device needs: for the state
(parameters and AdamW's moments, float32), and for temporaries. Nothing is run.
A worker's batch has 8 segments of 1,024 tokens; SelSync averages parameters.
Temporaries are those of XLA for a CPU; an accelerator's differ. Writes
memory.json.
"""

import argparse
import json
import math
import os
import pathlib
import time
from typing import Any

os.environ.setdefault('PJRT_NPROC', '16')

import jax
import jax.numpy as jnp
import optax

from selsync_jax import methods
from selsync_jax import models
from selsync_jax.devices import mappers
from selsync_jax.devices.layout import Layout
from selsync_jax.models import tasks
from selsync_jax.training.step import init_state
from selsync_jax.training.step import train_step

EXAMPLES, TOKENS = 8, 1024
# Vocabulary, layers, width, heads, and width of the gated layer.
SIZES = {
  '10M': (10_240, 6, 256, 4, 688),
  '124M': (25_600, 12, 768, 12, 2048),
  '350M': (25_600, 24, 1024, 16, 2736),
  '1.3B': (25_600, 24, 2048, 16, 5464),
}
LAYOUTS = ('8x1x1', '2x4x1', '2x2x2', '2x1x4', '8x1x8')


def decoder(size: str) -> tuple[Any, Any, Any]:
  """One worker's step, and the shapes of its state and of its batch."""
  vocabulary, num_layers, embed_dim, num_heads, mlp_dim = SIZES[size]
  model = models.create_model(
    'decoder',
    vocabulary,
    num_layers=num_layers,
    embed_dim=embed_dim,
    num_heads=num_heads,
    mlp_dim=mlp_dim,
    dtype='bfloat16',
  )
  task = tasks.TASKS['language_modeling']
  strategy = methods.create_strategy('selsync', methods.Context(1, 0))
  optimizer = optax.adamw(1e-3)
  tokens = jax.ShapeDtypeStruct((EXAMPLES, TOKENS), jnp.int32)
  batch = {
    'inputs': tokens,
    'targets': tokens,
    'mask': jax.ShapeDtypeStruct((EXAMPLES,), jnp.bool),
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


def measure(size: str, layout: Layout) -> dict[str, Any]:
  """Bytes per device of a size of the decoder."""
  step, state, batch = decoder(size)
  batches = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=layout.batch_sharding(x.shape)
    ),
    mappers.abstract(batch, layout.workers),
  )
  states = mappers.abstract_state(state, layout.workers, layout)
  mapped: Any = mappers.map_workers(step, layout, donate=(0,))
  began = time.monotonic()
  compiled = mapped.__wrapped__.lower(states, batches).compile()
  return {
    'parameters': sum(x.size for x in jax.tree.leaves(state.params)),
    'state': held(states),
    'temporaries': compiled.memory_analysis().temp_size_in_bytes,
    'compiled_in': time.monotonic() - began,
  }


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--sizes', nargs='+', default=[*SIZES], choices=SIZES)
  parser.add_argument('--layouts', nargs='+', default=LAYOUTS)
  parser.add_argument('--out', default='memory.json')
  options = parser.parse_args()
  layouts = {
    name: Layout(*map(int, name.split('x'))) for name in options.layouts
  }
  devices = [x.workers * x.devices_per_worker for x in layouts.values()]
  jax.config.update('jax_num_cpu_devices', max(devices))
  print('decoder  layout  parameters  state, GB  temporaries, GB')
  rows = {}
  for size in options.sizes:
    for name, layout in layouts.items():
      row = rows[f'{size} {name}'] = measure(size, layout)
      print(
        f'{size:>7}{name:>8}{row["parameters"] / 1e6:>10.1f} M'
        f'{row["state"] / 1e9:11.3f}{row["temporaries"] / 1e9:17.2f}',
        flush=True,
      )
  pathlib.Path(options.out).write_text(json.dumps(rows, indent=2) + '\n')


if __name__ == '__main__':
  main()
