"""Idle time of a device between the kernels of a step, from a trace.

  python -m benchmarks.speed.gaps
  python -m benchmarks.speed.gaps --workload 'decoder 10M' --tiny   # On a CPU.

Takes three kinds of steps of the README's loop on one device: local steps, and
SelSync steps that do not synchronize, with and without `vote_delay=1`. If XLA
makes the host read a vote before it decides a conditional, the device is idle
meanwhile. Each kind is timed without a trace, in turn with the others, and then
traced. Prints for each kind the time of a step, its ratio to a local step, and
from the trace the idle share of the time, the idle time of a step, and the
longest gap of a usual step. The limit is 0. Writes gaps.json.
"""

import argparse
from collections.abc import Iterable, Sequence
import itertools
import pathlib
import statistics
import tempfile
from typing import NamedTuple

import jax
from jax.profiler import ProfileData

from benchmarks import variants
from benchmarks.speed import accelerator_rows as rows
from benchmarks.table import report, Table
from tests.support.workloads import WORKLOADS

STEPS = (
  'local step',
  'SelSync, no synchronization',
  'SelSync, no synchronization, vote_delay=1',
)
Span = tuple[float, float]  # Start and end, in nanoseconds.


class Trace(NamedTuple):
  """Kernel times of a device.

  Attributes:
    span: nanoseconds from its first kernel to the end of its last.
    gaps: nanoseconds of each gap in which no kernel ran.
  """

  span: float
  gaps: Sequence[float]


def trace_of(kernels: Iterable[Span]) -> Trace:
  """The trace of kernels, which may overlap.

  >>> trace_of([(0, 10), (5, 8), (30, 40), (12, 20)])
  Trace(span=40, gaps=[2, 10])
  """
  first, *others = sorted(kernels)
  end, gaps = first[1], []
  for start, stop in others:
    if start > end:
      gaps.append(start - end)
    end = max(end, stop)
  return Trace(end - first[0], gaps)


def kernels(file: pathlib.Path) -> list[Span]:
  """Work of a device: a GPU's streams, or the threads of a CPU's client."""
  planes = [*ProfileData.from_file(str(file)).planes]
  devices = [plane for plane in planes if plane.name.startswith('/device:GPU')]
  prefix = 'Stream' if devices else 'tf_XLA'
  lines = itertools.chain.from_iterable(p.lines for p in devices or planes)
  return [
    (event.start_ns, event.start_ns + event.duration_ns)
    for line in lines
    if line.name.startswith(prefix)
    for event in line.events
    if event.duration_ns
  ]


def traced(variant: variants.Variant, steps: int) -> Trace:
  """Takes steps under the profiler."""
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      variant.run(steps)
    (file,) = pathlib.Path(folder).rglob('*.xplane.pb')
    return trace_of(kernels(file))


def parser(about: str, workload: str, out: str) -> argparse.ArgumentParser:
  """The parser of a benchmark that takes steps of one workload."""
  parser = argparse.ArgumentParser(description=about.split('\n')[0])
  add = parser.add_argument
  add('--workload', default=workload, choices=WORKLOADS)
  add('--batch', type=int, help="default: the workload's")
  add('--dtype', default='bfloat16')
  add('--round', type=float, default=0.5, help='seconds; or one step')
  add('--tiny', action='store_true', help='a small model, for a CPU')
  add('--out', default=out)
  return parser


def problem_of(options: argparse.Namespace) -> variants.Problem:
  """The settings chosen by the flags, to make variants with."""
  workload = WORKLOADS[options.workload]
  workload = workload.tiny() if options.tiny else workload
  size = options.batch or workload.examples
  return rows.problem_of(workload, options.dtype, size)


def main() -> None:
  flags = parser(__doc__, 'decoder 124M', 'gaps.json')
  flags.add_argument('--steps', type=int, default=20, help='of a trace')
  options = flags.parse_args()
  problem = problem_of(options)
  made = {n: variants.Variant(variants.FIRST[n], 1, problem) for n in STEPS}
  times = rows.seconds({n: v.run for n, v in made.items()}, options.round)
  local = statistics.median(times['local step'])
  found = []
  for name, variant in made.items():
    span, gaps = traced(variant, options.steps)
    step = statistics.median(times[name])
    longest = sorted(gaps, reverse=True)[: options.steps]
    found.append(
      {
        'step': name,
        'ms': 1e3 * step,
        'of_local': step / local,
        'idle': sum(gaps) / span,
        'idle_us': sum(gaps) / options.steps / 1e3,
        'longest_us': statistics.median(longest or [0]) / 1e3,
      }
    )
  head = ['', 'ms', 'of local', 'idle', 'us a step', 'longest us']
  cells = [
    [
      row['step'],
      *(f'{row["ms"]:.3f}', f'{row["of_local"]:.4f}', f'{row["idle"]:.2%}'),
      *(f'{row["idle_us"]:.1f}', f'{row["longest_us"]:.1f}'),
    ]
    for row in found
  ]
  device = jax.devices()[0].device_kind
  title = f'{options.workload}, {options.dtype}, on {device}'
  result = {
    'device': device,
    'jax': jax.__version__,
    'parameters': made[STEPS[0]].params,
    'rows': found,
  }
  report(options.out, result, Table(head, cells, title))


if __name__ == '__main__':
  main()
