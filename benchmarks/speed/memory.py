"""Memory per device of the decoder's training step, by layout.

  python -m benchmarks.speed.memory
  python -m benchmarks.speed.memory --sizes 10M 124M --layouts 2x1x4

Compiles the step ahead of time, for as many virtual devices as the layout
(workers x data x fsdp) has, and asks XLA how much memory a device needs: for
the state (parameters and AdamW's moments, float32), and for temporaries.
Nothing is run. A worker's batch has 8 segments of 1,024 tokens; SelSync
averages parameters. XLA plans the temporaries for a CPU; an accelerator's
differ. Writes memory.json.
"""

import argparse
import math
import time
from typing import Any

import jax

from benchmarks.table import report, Table
from selsync_jax.devices.layout import Layout
from selsync_jax.devices.mappers import abstract, split
from tests.support import shapes, workloads

EXAMPLES = 8
LAYOUTS = ('8x1x1', '2x4x1', '2x2x2', '2x1x4', '8x1x8')


def compiled_step(
  workload: workloads.Workload, layout: Layout
) -> tuple[Any, Any]:
  """The step of a decoder, and the shapes of all workers' states."""
  step, state, batch = shapes.decoder(workload)
  batches = split(abstract(batch, layout.workers), layout.batch_sharding)
  states = layout.abstract(state)
  mapped: Any = layout.map_workers(step, donate=(0,))
  return mapped.__wrapped__.lower(states, batches).compile(), states


def measure(size: str, layout: Layout) -> dict[str, Any]:
  """Bytes per device of a size of the decoder."""
  began = time.monotonic()
  compiled, states = compiled_step(workloads.decoder(size, EXAMPLES), layout)
  needed = compiled.memory_analysis()
  return {
    'parameters': sum(
      math.prod(x.shape[1:]) for x in jax.tree.leaves(states.params)
    ),
    # The step's arguments: the state, and a batch of some kilobytes.
    'state': needed.argument_size_in_bytes,
    'temporaries': needed.temp_size_in_bytes,
    'compiled_in': time.monotonic() - began,
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument(
    '--sizes', nargs='+', default=[*workloads.SIZES], choices=workloads.SIZES
  )
  parser.add_argument('--layouts', nargs='+', default=LAYOUTS)
  parser.add_argument('--out', default='memory.json')
  options = parser.parse_args()
  layouts = {
    name: Layout(*map(int, name.split('x'))) for name in options.layouts
  }
  devices = [x.workers * x.devices_per_worker for x in layouts.values()]
  jax.config.update('jax_num_cpu_devices', max(devices))
  rows = {
    f'{size} {name}': measure(size, layout)
    for size in options.sizes
    for name, layout in layouts.items()
  }
  table = Table(
    ('decoder', 'layout', 'parameters', 'state, GB', 'temporaries, GB'),
    [
      [
        *name.split(),
        f'{row["parameters"] / 1e6:.1f} M',
        f'{row["state"] / 1e9:.3f}',
        f'{row["temporaries"] / 1e9:.2f}',
      ]
      for name, row in rows.items()
    ],
  )
  report(options.out, rows, table)


if __name__ == '__main__':
  main()
