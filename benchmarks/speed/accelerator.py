"""Cost of training on an accelerator, and the cost that SelSync adds.

  python -m benchmarks.speed.accelerator
  python -m benchmarks.speed.accelerator --only steps --workloads 'decoder 350M'
  python -m benchmarks.speed.accelerator --tiny --seconds=60     # On a CPU.

Needs jax, flax, optax, orbax and numpy; the batches are random. Measures rows
in order of importance until the time is used up; a row that is not reached, or
that does not fit into memory, says so. Prints one table, and writes
accelerator.json after each row.

  torch     PyTorch's step, compiled, on the same model, batch and dtype
  steps     one worker's SelSync step: time, throughput, share of the peak
  parts     cost of SelSync's parts over a local step, timed in turn
  workers   several workers on the device under vmap
  travel    elements sent by a worker in the program for eight devices

A share of the peak counts the model's operations, with the whole attention
matrix, and none twice. If PyTorch is installed, it is measured first, in a
process of its own, for a third of the time.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
import gc
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import jax

from benchmarks.speed import accelerator_rows as rows
from benchmarks.speed.accelerator_table import Row, Table
from selsync_jax.devices import backend
from tests.support.workloads import Workload, WORKLOADS

SECTIONS = ('torch', 'steps', 'parts', 'workers', 'travel')
DTYPES = ('bfloat16', 'float32')
FIRST = ('ResNet-50', 'decoder 350M', 'decoder 124M', 'decoder 10M')
FED = (('ResNet-50', 'bfloat16'), ('decoder 124M', 'bfloat16'))
PARTS = ('decoder 124M', 'ResNet-50', 'decoder 10M')
LAST = 6  # The priority of larger batches.
EACH = 8  # Examples per worker, with several workers.
DEVICES = 8


class Limits(NamedTuple):
  """Limits of the measurements.

  Attributes:
    examples: largest batch, where doubling ends.
    seconds: duration of a round of steps, which has at least one step.
    workers: how many share the device.
  """

  examples: int
  seconds: float
  workers: Sequence[int]


class Job(NamedTuple):
  """A measurement.

  Attributes:
    priority: the job with the least priority runs first.
    labels: labels of the job's rows.
    run: returns the rows.
    larger: the job to run after a success, if any.
  """

  priority: int
  labels: Row
  run: Callable[[], list[Row]]
  larger: Callable[[], 'Job'] | None = None


def step_job(
  priority: int,
  name: str,
  workload: Workload,
  dtype: str,
  size: int,
  limits: Limits,
  **fields: Any,
) -> Job:
  """A workload's step; doubles the batch after all other jobs."""
  given = name, workload, dtype, 2 * size, limits
  twice = partial(step_job, LAST, *given, **fields)
  return Job(
    priority,
    dict(section='steps', name=name, dtype=dtype, batch=size, **fields),
    partial(
      rows.step_row,
      limits.seconds,
      workload,
      dtype,
      size,
      fed=priority < LAST and (name, dtype) in FED,
      **fields,
    ),
    twice if 2 * size <= limits.examples else None,
  )


def step_jobs(
  workloads: Mapping[str, Workload], limits: Limits
) -> Iterator[Job]:
  """Every workload, in both precisions."""
  for k, dtype in enumerate(DTYPES):
    for name, workload in workloads.items():
      priority = 0 if not k and name in FIRST else 4 + k
      yield step_job(priority, name, workload, dtype, workload.examples, limits)
  if large := workloads.get('decoder 350M'):
    again = 'decoder 350M', large, DTYPES[0], large.examples, limits
    yield step_job(4, *again, remat=True)


def other_jobs(
  workloads: Mapping[str, Workload], limits: Limits
) -> Iterator[Job]:
  """The cost of SelSync, each part on its workloads, in bf16."""

  def job(priority, section, name, batch, measure, *args):
    labels = dict(section=section, name=name, dtype=DTYPES[0], batch=batch)
    return Job(priority, labels, partial(measure, *args))

  for name in PARTS:
    if work := workloads.get(name):
      args = rows.parts_rows, limits.seconds, work, DTYPES[0], work.examples
      yield job(1, 'parts', name, work.examples, *args)
  if small := workloads.get('decoder 10M'):
    for count in limits.workers:
      args = rows.workers_row, limits.seconds, small, DTYPES[0], EACH, count
      yield job(2, 'workers', f'{count} of decoder 10M', EACH, *args)
    args = rows.travel_row, small, DEVICES
    yield job(3, 'travel', 'decoder 10M', small.examples, *args)


def attempt(run: Callable[[], list[Row]]) -> list[Row]:
  """The rows of a job, or one row with the reason for having none.

  One failure must not cost the other rows: such a machine is rarely available.
  """
  try:
    return run()
  except Exception as error:
    text = ' '.join(str(error).split())
    is_memory = 'RESOURCE_EXHAUSTED' in text or isinstance(error, rows.TooLarge)
    reason = 'out of memory' if is_memory else type(error).__name__
    return [{'not_measured': f'{reason}: {text[:160]}'}]
  finally:
    gc.collect()  # Frees the program's arrays on the device.


def measure(
  jobs: Iterable[Job], seconds: float, report: Callable[[Row], None]
) -> None:
  """Runs jobs in order of importance until the time is used up."""
  began = time.monotonic()
  longest: dict[str, float] = {}  # By section; its jobs are alike.
  queue = sorted(jobs, key=lambda job: job.priority)
  while queue:
    job, *queue = queue
    start, section = time.monotonic(), job.labels['section']
    if began + seconds - start <= longest.get(section, 0.0):
      found = [{'not_measured': 'no time left'}]
    else:
      found = attempt(job.run)
      took = time.monotonic() - start
      longest[section] = max(longest.get(section, 0.0), took)
      if job.larger and 'not_measured' not in found[0]:
        queue.append(job.larger())
    for row in found:
      report(job.labels | row)


def torch_rows(
  names: Sequence[str], tiny: bool, seconds: float
) -> Iterator[Row]:
  """PyTorch's rows, from a process that has the device to itself."""
  if not importlib.util.find_spec('torch'):
    yield {'section': 'torch', 'not_measured': 'PyTorch is not installed'}
    return
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder, 'rows.jsonl')
    out.touch()
    command = [
      sys.executable,
      '-m',
      'benchmarks.speed.torch_side',
      f'--out={out}',
    ]
    command += [f'--seconds={seconds}', '--workloads', *names]
    command += ['--tiny'] * tiny
    # Compiling may take longer; rows measured before the limit count.
    try:
      code = subprocess.run(
        command, timeout=seconds + 60, check=False
      ).returncode
      lost = code and f'PyTorch ended with exit code {code}'
    except subprocess.TimeoutExpired:
      lost = 'PyTorch took too long'
    for line in out.read_text().splitlines():
      yield {'section': 'torch', **json.loads(line)}
    if lost:
      yield {'section': 'torch', 'name': 'others', 'not_measured': lost}


def main(argv: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  add = parser.add_argument
  add('--seconds', type=float, default=480.0, help='of the whole command')
  add('--only', nargs='+', default=SECTIONS, choices=SECTIONS)
  add('--workloads', nargs='+', default=[*WORKLOADS], choices=WORKLOADS)
  add('--most', type=int, default=2**14, help='examples of a batch')
  add('--round', type=float, default=0.5, help='seconds; or one step')
  add('--workers', type=int, nargs='+', default=(1, 4, 8, 16))
  add('--tiny', action='store_true', help='small models, for a CPU')
  add('--out', type=pathlib.Path, default='accelerator.json')
  options = parser.parse_args(argv)
  began = time.monotonic()
  workloads = {name: WORKLOADS[name] for name in options.workloads}
  if options.tiny:
    workloads = {name: w.tiny() for name, w in workloads.items()}
  table = Table(options.out)
  if 'torch' in options.only:
    share = options.seconds / (3 if len(options.only) > 1 else 1)
    for row in torch_rows(options.workloads, options.tiny, share):
      table.add(row)
  os.environ.setdefault('XLA_PYTHON_CLIENT_MEM_FRACTION', '0.92')
  backend.make_devices(DEVICES)
  table.machine = {
    'device': jax.devices()[0].device_kind,
    'jax': jax.__version__,
    'python': platform.python_version(),
    'xla_flags': os.environ.get('XLA_FLAGS', ''),
  }
  table.save()
  limits = Limits(options.most, options.round, options.workers)
  jobs = [*step_jobs(workloads, limits), *other_jobs(workloads, limits)]
  with tempfile.TemporaryDirectory() as folder:
    # Every program is compiled once, even when it is used again.
    jax.config.update('jax_compilation_cache_dir', folder)
    measure(
      [job for job in jobs if job.labels['section'] in options.only],
      options.seconds - (time.monotonic() - began),
      table.add,
    )


if __name__ == '__main__':
  main()
