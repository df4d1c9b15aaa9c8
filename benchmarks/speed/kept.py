"""Gain of a step on a CPU that reuses the memory of the previous step.

  python -m benchmarks.speed.kept

glibc returns the end of its heap to the kernel, and the next step faults it in
again. Every command prevents that (`backend.keep_memory`). Times the steps of
runs with and without it, in turn, each in its own process. Prints milliseconds
of a step, page faults of the run per step (medians over rounds), and the ratio
of the times; writes one JSON file. Takes 10 minutes on 2 cores.
"""

import argparse
import concurrent.futures
import multiprocessing
import resource
import statistics

from benchmarks.speed import loop
from benchmarks.table import report, Table
from selsync_jax.devices import backend


def faults() -> int:
  """The page faults of this process that needed no disk."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(name: str, steps: int, keeps: bool) -> tuple[float, float]:
  """Milliseconds of a step, and page faults per step, including compilation.

  A process may call this once.
  """
  if not keeps:
    backend.keep_memory = lambda: None
  backend.start(workers=4)
  before = faults()
  ms, _ = loop.loop_ms(loop.configured(name, steps))
  return ms, (faults() - before) / steps


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument(
    '--configs',
    nargs='+',
    default=['digits', 'stdlib_gpt:selsync,smoke', 'stdlib_gpt:bsp,smoke'],
  )
  parser.add_argument('--steps', type=int, default=150)
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--out', default='kept.json')
  options = parser.parse_args()
  rows, found = [], {}
  with concurrent.futures.ProcessPoolExecutor(
    1, multiprocessing.get_context('spawn'), max_tasks_per_child=1
  ) as pool:
    for name in options.configs:
      each = [
        [
          pool.submit(measure, name, options.steps, keeps).result()
          for keeps in (False, True)
        ]
        for _ in range(options.rounds)
      ]
      (ms, few), (kept_ms, kept_few) = (
        map(statistics.median, zip(*side, strict=True))
        for side in zip(*each, strict=True)
      )
      found[name] = each
      rows.append(
        [
          *(name, f'{ms:.2f}', f'{kept_ms:.2f}', f'{kept_ms / ms:.2f}'),
          *(f'{few:,.0f}', f'{kept_few:,.0f}'),
        ]
      )
  head = ('', 'ms', 'kept, ms', 'ratio', 'page faults', 'kept, page faults')
  report(options.out, found, Table(head, rows))


if __name__ == '__main__':
  main()
