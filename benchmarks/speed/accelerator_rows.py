"""The measurements of `benchmarks.speed.accelerator`, row by row."""

from collections.abc import Callable, Iterable, Iterator
import functools
import statistics
import time
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import Mesh
import numpy as np

from benchmarks import variants
from benchmarks.speed import memory, overhead
from benchmarks.speed.peaks import peak
from benchmarks.speed.program import compile_program, Program, task_of
import selsync_jax as ss
from selsync_jax import methods
from selsync_jax.data.arrays import ArrayDataset
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.protocol import Data, unchanged
from selsync_jax.devices.layout import Layout
from selsync_jax.models import tasks
from selsync_jax.sync.consensus import AXIS
from tests.support import programs
from tests.support.partitions import make_partition
from tests.support.workloads import Workload

ROUNDS = 5
PARTS = {
  'local step': overhead.STEPS['local'],
  '+ gradient change': overhead.STEPS['measuring'],
  '+ vote': overhead.STEPS['voting'],
  '+ lax.cond, quiet': overhead.STEPS['SelSync'],
  'synchronizing': (ss.selsync(0.0), True),
}

Row = dict[str, Any]
Run = Callable[[int], None]


class TooLarge(Exception):
  """Raised if XLA plans more memory for a program than the device has."""


def compiled(
  workload: Workload,
  dtype: str,
  size: int,
  count: int = 1,
  mapper: str = 'pmap',
  **fields: Any,
) -> Program:
  """SelSync's step of a workload.

  Raises:
    TooLarge: if the device cannot hold it.
  """
  program = compile_program(
    workload.create_model(dtype, **fields),
    methods.create_strategy('selsync', methods.Context(1, 0)),
    workload.create_optimizer(),
    workload.batch_of(size),
    count,
    mapper,
  )
  limit = (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')
  if limit and program.bytes > limit:
    raise TooLarge(f'needs {program.bytes / 1e9:.0f} of {limit / 1e9:.0f} GB')
  return program


class Runner:
  """Takes steps of a program, starting from the last state."""

  def __init__(self, program: Program):
    self.program, self.state = program, program.state

  def run(self, steps: int) -> None:
    """Waits only for the last step."""
    for _ in range(steps):
      self.state, _ = self.program.step(self.state, self.program.batch)
    jax.block_until_ready(self.state)

  def feed(self, batches: Iterable[Any]) -> float:
    """Seconds per step on batches from the host, fed like the trainer's loop.

    It dispatches the next step before it waits for the current one.
    """
    times, waiting = [], ()
    for batch in batches:
      self.state, metrics = self.program.step(self.state, batch)
      jax.block_until_ready(waiting)
      waiting = metrics
      times.append(time.perf_counter())
    return (times[-1] - times[2]) / (len(times) - 3)


def seconds(runs: dict[str, Run], each: float) -> dict[str, list[float]]:
  """Seconds per step, by round, timed in turn.

  Args:
    runs: functions by name; each takes a number of steps.
    each: seconds of a round, which has at least one step.
  """
  longest = 0.0
  for run in runs.values():
    run(1)
    began = time.perf_counter()
    run(2)
    longest = max(longest, (time.perf_counter() - began) / 2)
  steps = int(np.clip(each / longest, 1, 100))
  return variants.time_interleaved(runs, steps, ROUNDS)


def timing(times: list[float]) -> Row:
  """Median and quartiles of seconds, in milliseconds."""
  low, middle, high = np.percentile(times, [25, 50, 75])
  return {'ms': 1e3 * middle, 'ms_quartiles': [1e3 * low, 1e3 * high]}


def step_row(
  each: float,
  workload: Workload,
  dtype: str,
  size: int,
  fed: bool = False,
  **fields: Any,
) -> list[Row]:
  """Time, throughput and memory of one worker's step.

  Args:
    each: see `seconds`.
    workload: the workload to train.
    dtype: dtype of the computation.
    size: examples in the batch, which is already on the device.
    fed: whether to time steps on batches from the host, too.
    **fields: model fields that replace the workload's.
  """
  program = compiled(workload, dtype, size, **fields)
  runner = Runner(program)
  row = timing(seconds({'step': runner.run}, each)['step'])
  step = row['ms'] / 1e3
  most = peak(jax.devices()[0].device_kind, dtype)
  rate = program.flops and program.flops / step
  row |= {
    'parameters': program.parameters,
    'per_second': size * workload.units / step,
    'unit': 'tokens' if workload.is_text else 'images',
    'flops_per_second': rate,
    'of_peak': most and rate and rate / most,
    'bytes': program.bytes,
    'compiled_in': program.compiled_in,
    'device': jax.default_backend(),
  }
  if fed:
    row['ms_fed'] = 1e3 * runner.feed(host_batches(workload, size))
  return [row]


def host_batches(workload: Workload, size: int) -> Iterator[Any]:
  """Batches of random examples from the NumPy backend, for one worker."""
  dataset = ArrayDataset(
    'random',
    task='language_modeling' if workload.is_text else 'classification',
    num_classes=workload.outputs,
    splits={'train': workload.examples_of(2 * size)},
    transform=unchanged,
  )
  partition = make_partition('seldp', 2 * size, 1, size, 0)
  data = Data(dataset, Assignment(partition, dataset.order, None, size, 0))
  return data.batches(range(1), 0, 13)


def problem_of(workload: Workload, dtype: str, size: int) -> variants.Problem:
  """Parts of a worker's step in a custom training loop."""
  batch = workload.batch_of(size)
  task, model = task_of(batch), workload.create_model(dtype)
  example = {name: array[:1] for name, array in batch.items()}
  params, model_state = tasks.init(model, task, example, jax.random.key(0))
  loss = tasks.train_loss(model, task)
  return variants.Problem(
    params,
    lambda params, batch: loss(params, model_state, batch, jax.random.key(0))[
      0
    ],
    batch,
    workload.create_optimizer(),
  )


def parts_rows(
  each: float, workload: Workload, dtype: str, size: int
) -> list[Row]:
  """Cost of each part of a SelSync step over a local step, on one worker."""
  problem = problem_of(workload, dtype, size)
  made = {
    name: variants.Variant(first, 1, problem, averages)
    for name, (first, averages) in PARTS.items()
  }
  times = seconds({name: variant.run for name, variant in made.items()}, each)
  local = np.array(times['local step'])
  rows = []
  for name, column in times.items():
    ratios = np.array(column) / local
    rows.append(
      {'part': name, 'parameters': made[name].params, **timing(column)}
      | {
        'of_local': float(np.median(ratios)),
        'of_local_range': [float(ratios.min()), float(ratios.max())],
      }
    )
  return rows


def workers_row(
  each: float, workload: Workload, dtype: str, size: int, count: int
) -> list[Row]:
  """Workers on one device, next to one worker with all their examples."""
  many = compiled(workload, dtype, size, count, 'vmap')
  runs = {
    'vmap': Runner(many).run,
    'one, same batch': Runner(compiled(workload, dtype, size * count)).run,
    'one': Runner(compiled(workload, dtype, size)).run,
  }
  times = seconds(runs, each)
  medians = {name: statistics.median(times[name]) for name in runs}
  return [
    timing(times['vmap'])
    | {
      'per_second': count * size * workload.units / medians['vmap'],
      'unit': 'tokens' if workload.is_text else 'images',
      'bytes': many.bytes,
      'compiled_in': many.compiled_in,
      'of_one_with_the_same_batch': medians['one, same batch']
      / medians['vmap'],
      'of_as_many_runs_of_one': count * medians['one'] / medians['vmap'],
    }
  ]


class _Compiled(Layout):
  """Workers on devices that programs are only compiled for."""

  @functools.cached_property
  def mesh(self) -> Mesh:
    """Devices of a topology; on a CPU, the devices of this process."""
    if jax.default_backend() == 'cpu':
      return super().mesh
    kind = 'cuda' if jax.default_backend() == 'gpu' else jax.default_backend()
    topology = topologies.get_topology_desc(
      platform=kind, topology=f'1x1x{self.workers}'
    )
    types = (jax.sharding.AxisType.Auto,)
    return Mesh(np.array(topology.devices), (AXIS,), axis_types=types)


def travel_row(workload: Workload, workers: int) -> list[Row]:
  """Elements that leave a worker in the step that this backend compiles.

  Raises:
    ValueError: if the backend does not expose the compiled program.
  """
  step, states = memory.compiled_step(workload, _Compiled(workers))
  if (text := step.as_text()) is None:
    raise ValueError('this JAX does not show programs for other devices')
  sent = programs.collectives(text)
  totals = {
    place: sum(s.elements for s in sent if s.conditional == conditional)
    for place, conditional in (('inside', True), ('outside', False))
  }
  parameters = sum(
    int(np.prod(x.shape[1:])) for x in jax.tree.leaves(states.params)
  )
  return [
    {
      'parameters': parameters,
      'elements_inside': totals['inside'],
      'elements_outside': totals['outside'],
      'only_inside': totals['inside'] >= parameters > totals['outside'],
      'collectives': [s._asdict() for s in sent],
    }
  ]
