"""Samples per second of workers on CPUs, next to PyTorch.

  python -m benchmarks.speed.beside_torch --workers 1 4

Trains the network of digits with batches of 32, all workers on this machine.
PyTorch has a process with one thread for each worker, and two loops: a bare
loop that sends nothing, and a loop that votes, with an all-reduce of one number
(gloo). JAX has one process with a device for each worker: a local step,
SelSync's step, which votes, and the loop of `train`. The sides take turns.
Prints one table with the ratios to PyTorch's bare loop, which is the limit, and
writes one JSON file. Needs torch.
"""

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.table import parser, report, Table

BATCH, WARMUP = 32, 10
BARE = 'PyTorch, bare loop'


def torch_side(workers: int, steps: int) -> dict[str, float]:
  """Samples a second of PyTorch's loops."""
  from torch import multiprocessing

  with tempfile.TemporaryDirectory() as folder:
    found = multiprocessing.get_context('fork').SimpleQueue()
    arguments = workers, steps, folder, found
    multiprocessing.start_processes(
      _torch_worker, arguments, workers, start_method='fork'
    )
    return found.get()


def _torch_worker(
  rank: int, workers: int, steps: int, folder: str, found: Any
) -> None:
  import torch
  from torch import distributed, nn

  torch.set_num_threads(1)
  torch.manual_seed(rank)
  distributed.init_process_group(
    'gloo', init_method=f'file://{folder}/store', rank=rank, world_size=workers
  )
  gelu = nn.GELU(approximate='tanh')  # As in our network.
  model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), gelu),
    *(nn.Conv2d(32, 64, 3, padding=1), gelu),
    *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 128), gelu),
    nn.Linear(128, 10),
  )
  optimizer = torch.optim.SGD(
    model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4
  )
  images = torch.randn(BATCH, 1, 8, 8)
  labels = torch.randint(0, 10, (BATCH,))
  number = torch.zeros(1)

  def run(count, votes):
    distributed.barrier()
    began = time.perf_counter()
    for _ in range(count):
      optimizer.zero_grad()
      nn.functional.cross_entropy(model(images), labels).backward()
      nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
      if votes:
        distributed.all_reduce(number)
    distributed.barrier()
    return workers * BATCH * count / (time.perf_counter() - began)

  run(WARMUP, True)
  rates = {BARE: run(steps, False), 'PyTorch, voting': run(steps, True)}
  if rank == 0:
    found.put(rates)
  distributed.destroy_process_group()


def jax_side(workers: int, steps: int) -> dict[str, float]:
  """Samples a second of JAX's steps, and of `train`."""
  import jax
  import optax

  jax.config.update('jax_num_cpu_devices', workers)
  from benchmarks import variants
  from benchmarks.speed import loop

  problem = variants.convnet(32)._replace(
    optimizer=optax.chain(
      optax.clip_by_global_norm(1.0),
      optax.add_decayed_weights(1e-4),
      optax.sgd(0.1, momentum=0.9),
    )
  )
  local = variants.Variant(None, workers, problem)
  local.run(WARMUP)
  began = time.perf_counter()
  local.run(steps)
  ms = {'JAX, local step': 1e3 * (time.perf_counter() - began) / steps}
  config = loop.configured('digits', max(steps, 100))
  config.workers, config.data.backend = workers, 'numpy'
  config.checkpoint.every = loop.NEVER
  ms['JAX, SelSync step'] = loop.step_ms(config, steps)
  ms['train'], _ = loop.loop_ms(config)
  return {name: workers * BATCH * 1e3 / each for name, each in ms.items()}


def measure(workers: int, steps: int, rounds: int) -> dict[str, float]:
  """Medians of samples a second of all workers."""
  found: dict[str, list[float]] = {}
  for _, side in itertools.product(range(rounds), ('torch', 'jax')):
    command = [sys.executable, '-m', 'benchmarks.speed.beside_torch']
    command += [f'--side={side}', f'--workers={workers}', f'--steps={steps}']
    said = subprocess.check_output(command, text=True)
    for name, rate in json.loads(said.splitlines()[-1]).items():
      found.setdefault(name, []).append(rate)
  return {name: statistics.median(rates) for name, rates in found.items()}


def main() -> None:
  flags = parser(__doc__, 'beside_torch.json', steps=150, rounds=3)
  add = flags.add_argument
  add('--workers', type=int, nargs='+', default=[1, 4])
  add('--side', choices=('torch', 'jax'), help=argparse.SUPPRESS)
  options = flags.parse_args()
  if not importlib.util.find_spec('torch'):
    sys.exit('beside_torch.py: needs torch')
  if options.side:
    side = {'torch': torch_side, 'jax': jax_side}[options.side]
    print(json.dumps(side(options.workers[0], options.steps)))
    return
  each = {n: measure(n, options.steps, options.rounds) for n in options.workers}
  rows = [
    [
      name,
      *(f'{rates[name]:,.0f}' for rates in each.values()),
      *(f'{rates[name] / rates[BARE]:.2f}' for rates in each.values()),
    ]
    for name in next(iter(each.values()))
  ]
  head = ['', *(f'{n} workers' for n in each), *(f'{n}, ratio' for n in each)]
  title = f'digits, batches of {BATCH}, {os.cpu_count()} cores; samples/s'
  report(options.out, vars(options) | {'rates': each}, Table(head, rows, title))


if __name__ == '__main__':
  main()
