"""Accuracy of the virtual clock on a cluster with a slow host.

  python -m benchmarks.network.clock --hosts=2 --bandwidth=200mbit

Trains digits with BSP, SelSync, and local SGD on an emulated cluster
(benchmarks/network/cluster.py), one worker per host. A busy loop takes half of
the core of host 0. The same runs are then simulated on a cluster with three
measured figures: the step time of each host while all hosts compute and none
communicates; the bandwidth; and the latency of a message (an all-reduce of one
number takes 2 (N-1) messages). Prints the predicted and the measured time of
the steps after the first ten, which compile, and writes clock.json. The limit
is 15%. Needs an otherwise idle machine with a core per host.
"""

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import table
from benchmarks.network import cluster as emulated
from benchmarks.network import host
from benchmarks.network.plan import PAYLOAD, report_accuracy
from selsync_jax.commands import config_file
from selsync_jax.runs import records
from selsync_jax.sync.network import bandwidth as bits_per_second

ROOT = pathlib.Path(__file__).parents[2]
METHODS = ('bsp', 'selsync', 'local_sgd')
WARM = 10  # Steps that are not timed.
SLOW = 0  # The host with the busy loop.


@contextlib.contextmanager
def own_core(hosts: int) -> Iterator[int]:
  """Pins this process to a host's core; on the slow host, adds a busy loop.

  Yields:
    The index of this host.
  """
  index = int(os.environ['JAX_PROCESS_ID'])
  host.take_own_cores(index, hosts)
  if index != SLOW:
    yield index
    return
  loop = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
  try:
    yield index
  finally:
    loop.kill()
    loop.wait()


def arguments(method: str, options: argparse.Namespace) -> list[str]:
  """The command line of a run without its command and workdir."""
  return [
    f'--config={config_file.with_method(f"{ROOT}/configs/digits.py", method)}',
    f'--config.workers={options.hosts}',
    f'--config.steps={options.steps}',
    '--config.data.backend=numpy',
    '--config.eval.every_epochs=1e6',
    '--config.model.num_filters=96',  # 1.35 M parameters.
  ]


def probe(options: argparse.Namespace) -> dict[str, float]:
  """Measures the seconds of a step and of a message, on one host."""
  import jax

  from benchmarks import variants
  from selsync_jax.cluster import processes
  from selsync_jax.training import start
  from selsync_jax.training.setup import create_setup

  with own_core(options.hosts), host.joined():
    alone = variants.all_reduce_alone(1, 1)
    times = variants.time_interleaved({'alone': alone}, 20, 5)['alone']
    file, *fields = arguments('local_sgd', options)
    setup = create_setup(
      config_file.settings(
        file.removeprefix('--config='),
        [*fields, f'--config.sync.period={options.steps + 1}'],
      )
    )
    own = range(jax.process_index(), jax.process_index() + 1)
    state, step = start.init(setup), setup.train_step()
    processes.wait_for_all('computing')
    ends = []
    for batch in setup.problem.data.batches(own, 0, options.steps):
      state, _ = jax.block_until_ready(step(state, batch))
      ends.append(time.perf_counter())
  return {
    'step': (ends[-1] - ends[WARM - 1]) / (options.steps - WARM),
    'message': statistics.median(times) / (2 * (options.hosts - 1)),
  }


def between(rows: Sequence[dict[str, Any]], field: str) -> float:
  """The time of the steps after the first ones, in seconds."""
  return rows[-1][field] - rows[WARM - 1][field]


def predict(
  method: str,
  hosts: Sequence[dict[str, float]],
  options: argparse.Namespace,
  workdir: pathlib.Path,
) -> float:
  """The virtual seconds of a run, simulated in `workdir`."""
  fastest = min(host['step'] for host in hosts)
  factors = tuple(host['step'] / fastest for host in hosts)
  latency = statistics.fmean(host['message'] for host in hosts)
  bandwidth = PAYLOAD * bits_per_second(options.bandwidth)
  fields = {
    'compute': 'factors',
    'factors': factors,
    'step_seconds': fastest,
    'bandwidth': f'{bandwidth / 1e3:.3f}kbit',
    'latency': f'{1e6 * latency:.3f}us',
  }
  subprocess.run(
    [
      *(sys.executable, '-m', 'selsync_jax', 'simulate'),
      *arguments(method, options),
      *(
        f'--config.virtual_cluster.{name}={value}'
        for name, value in fields.items()
      ),
      *(f'--workdir={workdir}', '--noreport'),
    ],
    cwd=ROOT,
    check=True,
    stdout=subprocess.DEVNULL,
  )
  return between(records.read_metrics(workdir), 'virtual_seconds')


def train(options: argparse.Namespace) -> None:
  """Trains this host's share of a run on the cluster."""
  from selsync_jax import __main__ as door

  flags = [f'--workdir={options.workdir}', '--noreport']
  with own_core(options.hosts):
    door.main(['train', *arguments(options.method, options), *flags])


def measure(
  method: str, options: argparse.Namespace, workdir: pathlib.Path
) -> float:
  """The seconds of a run on the emulated cluster, in `workdir`."""
  emulated.figures(train, options, method=method, workdir=str(workdir))
  return between(records.read_metrics(workdir), 'seconds')


def compare(options: argparse.Namespace) -> dict[str, Any]:
  """Probes the hosts, and predicts and measures every method."""
  hosts = emulated.figures(probe, options)
  seconds = {}
  with tempfile.TemporaryDirectory() as folder:
    for method in METHODS:
      out = pathlib.Path(folder) / method
      seconds[method] = {
        'predicted': predict(method, hosts, options, out / 'virtual'),
        'measured': measure(method, options, out / 'real'),
      }
  return {'hosts': hosts, 'seconds': seconds}


def main() -> None:
  parser = table.parser(__doc__, 'clock.json', hosts=2, steps=110)
  parser.add_argument('--bandwidth', default='200mbit')
  options = parser.parse_args()
  result = compare(options)
  steps = ', '.join(f'{1e3 * host["step"]:.1f}' for host in result['hosts'])
  pairs = {
    method: (each['predicted'], each['measured'])
    for method, each in result['seconds'].items()
  }
  title = f'{options.bandwidth}; a step of each host: {steps} ms'
  result |= {'cores': os.cpu_count()}
  report_accuracy(options.out, result, pairs, 'seconds', title)


if __name__ == '__main__':
  main()
