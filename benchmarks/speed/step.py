"""Cost of a training step of each workload on this machine.

  python -m benchmarks.speed.step              # All workloads at full size.
  python -m benchmarks.speed.step --tiny       # Smoke variants, for a CPU.
  python -m benchmarks.speed.step imagenet_alexnet --dtype=float32

Times one worker's SelSync step on a random batch in the workload's shapes that
is already on the device. The compiler counts the floating-point operations of
the step, with the backward pass and the optimizer. A sample is an image or a
segment of text. Prints one table and writes one JSON file.
"""

import argparse
import importlib
import math
import pathlib
import statistics
import time
from typing import Any

import jax
import numpy as np

from benchmarks.speed.peaks import peak
from benchmarks.speed.program import compile_program, Program
from benchmarks.table import report, Table
from selsync_jax import methods, models, optimizers

WORKLOADS = (
  'digits',
  'cifar10_resnet101',
  'cifar100_vgg11',
  'imagenet_alexnet',
  'wikitext103_transformer',
  'stdlib_gpt',
)

# Side and channels of images, and labels; or the size of a vocabulary.
IMAGES = {
  'digits': (8, 1, 10),
  'cifar10': (32, 3, 10),
  'cifar100': (32, 3, 100),
  'imagenet2012': (224, 3, 1000),
}
TEXTS = {'wikitext103': 267_735, 'stdlib_text': 256}


def random_batch(config: Any) -> tuple[int, dict[str, np.ndarray]]:
  """Classes, and one worker's batch in the shape of the config's data."""
  rng, size = np.random.default_rng(0), config.batch_size
  if config.data.name in TEXTS:
    classes = TEXTS[config.data.name]
    fields = {
      name: rng.integers(classes, size=(size, config.data.bptt), dtype=np.int32)
      for name in ('inputs', 'targets')
    }
  else:
    side, channels, classes = IMAGES[config.data.name]
    side = config.data.image_size or side
    image = rng.integers(256, size=(size, side, side, channels), dtype=np.uint8)
    fields = {
      'image': image / np.float32(255)
      if config.data.name == 'digits'
      else image,
      'label': rng.integers(classes, size=size, dtype=np.int32),
    }
  return classes, fields | {'mask': np.ones(size, bool)}


def compile_step(config: Any, count: int = 1, mapper: str = 'vmap') -> Program:
  """The trainer's step, with a random batch for each of `count` workers."""
  classes, batch = random_batch(config)
  return compile_program(
    models.create_model(num_outputs=classes, **config.model),
    methods.create_strategy(
      context=methods.Context(1, 0), **config.sync.to_dict()
    ),
    optimizers.create_optimizer(**config.optimizer),
    batch,
    count,
    mapper,
    config.seed,
  )


def seconds(program: Program, steps: int) -> float:
  """Median time of a step; the first step is not counted."""
  state, times = program.state, []
  for _ in range(steps + 1):
    began = time.perf_counter()
    state, metrics = jax.block_until_ready(program.step(state, program.batch))
    times.append(time.perf_counter() - began)
    del metrics
  return statistics.median(times[1:])


def measure(
  workload: str, *, tiny: bool, dtype: str | None, steps: int
) -> dict[str, Any]:
  """The figures of one workload."""
  module = importlib.import_module(f'selsync_jax.configs.{workload}')
  small = tiny and workload != 'digits'
  config = module.get_config('selsync,smoke' if small else 'selsync')
  config.optimizer.learning_rate = 0.0  # The labels are random.
  config.model.dtype = dtype or config.model.dtype
  program = compile_step(config)
  time_ = seconds(program, steps)
  most = peak(jax.devices()[0].device_kind, config.model.dtype)
  flops = program.flops or math.nan
  return {
    'dtype': config.model.dtype,
    'batch': config.batch_size,
    'parameters': program.parameters,
    'flops_per_sample': flops / config.batch_size,
    'seconds': time_,
    'bytes': program.bytes,
    'share_of_peak': most and flops / time_ / most,
  }


def table(rows: dict[str, dict[str, Any]]) -> Table:
  head = 'workload,dtype,batch,parameters,GFLOP/sample,step,memory,of peak'
  return Table(
    head.split(','),
    [
      [
        workload,
        row['dtype'],
        f'{row["batch"]}',
        f'{row["parameters"]:,}',
        f'{row["flops_per_sample"] / 1e9:.3g}',
        f'{row["seconds"] * 1e3:.3g} ms',
        f'{row["bytes"] / 1e6:,.0f} MB',
        '-' if row['share_of_peak'] is None else f'{row["share_of_peak"]:.0%}',
      ]
      for workload, row in rows.items()
    ],
    f'one worker, {jax.devices()[0].device_kind}',
  )


def main(argv: list[str] | None = None) -> None:
  """Measures each workload; prints and writes the results."""
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add('workloads', nargs='*', default=WORKLOADS, help='default: all')
  add('--tiny', action='store_true', help='the smoke variants')
  add(
    '--dtype',
    choices=('float32', 'bfloat16'),
    help="default: the workload's own",
  )
  add('--steps', type=int, default=10, help='the median counts')
  add('--out', type=pathlib.Path, default='step.json')
  flags = parser.parse_args(argv)
  rows = {
    workload: measure(
      workload, tiny=flags.tiny, dtype=flags.dtype, steps=flags.steps
    )
    for workload in flags.workloads
  }
  report(flags.out, rows, table(rows))


if __name__ == '__main__':
  main()
