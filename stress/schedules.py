"""Plays schedules of faults against the protocol of islands and processes.

  python -m stress.schedules --seeds=10000

Each seed is a run of two to five islands and their coordinator on a virtual
clock, or (every fifth) of processes, each of which is needed. Messages are
delayed, cut off in one direction or both, or lost with their connection; the
last ones of a connection may arrive after the first ones of the next. Members
are killed, frozen and restarted, fail, and are asked to stop; some islands lie.
tests/support/simulator/ has the members, the network, the faults, and the
invariants to check after each event. Prints the seeds that break an invariant;
`--seed=N` plays one of them, and prints the coordinator's notes. The exit code
is 1 if there are any.
"""

import argparse
from concurrent import futures
import os
import sys
import time

from tests.support.simulator import schedules
from tests.support.simulator.invariants import Invariants


def play(seed: int) -> str:
  """Returns the invariant that this seed breaks, if any."""
  try:
    schedules.play(seed)
  except Exception as error:
    return f'{type(error).__name__}: {error}'
  return ''


def show(seed: int) -> None:
  """Plays a schedule, and prints what the coordinator notes."""
  noted = Invariants.note

  def note(check, kind, island, words, *more):
    print(f'{check.world.now:8.3f} {island} {words} {more}')
    noted(check, kind, island, words, *more)

  Invariants.note = note
  world = schedules.play(seed)
  for process in world.every:
    print(process.name, process.step, process.result)


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--seeds', type=int, default=10_000)
  parser.add_argument('--first', type=int, default=0)
  parser.add_argument('--seed', type=int, help='plays this one, and shows it')
  options = parser.parse_args()
  if options.seed is not None:
    return show(options.seed)
  began = time.monotonic()
  seeds = range(options.first, options.first + options.seeds)
  with futures.ProcessPoolExecutor(os.cpu_count()) as pool:
    found = [*pool.map(play, seeds, chunksize=50)]
  wrong = {s: line for s, line in zip(seeds, found, strict=True) if line}
  for seed, line in wrong.items():
    print(f'--seed={seed}: {line}')
  took = time.monotonic() - began
  print(f'{len(seeds)} schedules in {took:.0f} s; {len(wrong)} are wrong')
  sys.exit(bool(wrong))


if __name__ == '__main__':
  main()
