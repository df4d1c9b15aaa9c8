"""Kills and damages runs, and checks that the results are unaffected.

  python -m stress.soak --kills=20
  python -m stress.soak --damages=20

Each case is a method, with four workers in one or two processes. With
`--simulate` it runs on a virtual cluster, and methods may be asynchronous. With
`--mesh` it has two workers of four devices each in one, two, or four processes.
With `--one_device` all workers share a device, a GPU for example. With
`--late`, the method's averages arrive some steps later.
One process of a run is killed (SIGKILL) at a random moment before it has
finished, and the run is resumed until it finishes. Its last checkpoint (every
worker's parameters and optimizer state) and its metrics are then compared with
an uninterrupted run.

With --damages, one run of each case is killed. In a copy of it, a random file
is lost, truncated, overwritten with zeros or has a flipped bit before the copy
resumes. It must end like the uninterrupted run, with a line about lost metrics;
or be refused in one line.

Prints one table and writes soak.json. The exit code is 1 if a single bit
differs without such a line.
"""

import argparse
from collections.abc import Sequence
from concurrent import futures
import itertools
import json
import pathlib
import random
import shutil
import sys
import tempfile
from typing import Any

from absl import logging

from selsync_jax import methods
from tests.support import damage, live_runs

Case = tuple[str, int]  # A method, and its number of processes.
CASES = tuple(itertools.product(methods.METHODS, (1, 2)))
MESHED = tuple(zip(methods.METHODS, itertools.cycle((1, 2, 4)), strict=False))
ALONE = tuple((method, 1) for method in methods.METHODS)
LATE = tuple(
  itertools.product(
    (
      'selsync+sync.delay=3',
      'local_sgd+sync.delay=7+sync.delay.keep=0.5+sync.delay.extrapolate=0.5',
      'diloco+sync.period=6+sync.delay=4+sync.delay.keep=0+sync.delay.mix=0.5',
      'streaming_diloco+sync.delay=2+sync.wire=int8',
      'gossip+sync.delay=1',
    ),
    (1, 2),
  )
)
MESH = ('--config.mapper=mesh', '--config.workers=2')
MESH += ('--config.mesh.data=2', '--config.mesh.fsdp=2')
DAMAGES = ('lost', 'half', 'zeros', 'zeros inside', 'flipped bit')


def command(
  method: str, processes: int, workdir: pathlib.Path, flags: tuple[str, ...]
) -> list[str]:
  """A run of some processes; 0 means a simulation.

  The method is `NAME`, or `NAME+FIELD=VALUE+...` as in compare.
  """
  name, *own = method.split('+')
  if processes:
    fields = (f'--config.{field}' for field in own)
    return live_runs.command(name, processes, workdir, *fields, *flags)
  return live_runs.simulation(name, workdir)


def simulated() -> tuple[tuple[str, int], ...]:
  """The cases of the virtual cluster."""
  from selsync_jax.simulate.asynchronous import ASYNCHRONOUS  # Imports SimPy.

  return tuple((method, 0) for method in (*ASYNCHRONOUS, 'selsync'))


def kill(command: list[str], workdir: pathlib.Path, rng: random.Random) -> str:
  """Kills a run at a random moment before its end; returns the last step."""
  while True:
    lines, delay = rng.randrange(live_runs.STEPS), rng.uniform(0, 0.5)
    if live_runs.kill_at(command, workdir, lines, delay, rng):
      return f'killed after step {len(live_runs.rows(workdir)):3}'
    shutil.rmtree(workdir)


def inflict(workdir: pathlib.Path, rng: random.Random) -> str:
  """Damages a random file of a run; returns its name, and the damage."""
  files = [
    path
    for path in sorted(workdir.rglob('*'))
    if path.is_file() and path.stat().st_size
  ]
  # A top-level file is as likely as one of the many files in the checkpoints.
  top = [path for path in files if path.parent == workdir]
  file, kind = rng.choice(rng.choice([top, files])), rng.choice(DAMAGES)
  damage.inflict(file, kind)
  return f'{file.relative_to(workdir)}: {kind}'


def resume(
  command: list[str],
  workdir: pathlib.Path,
  left_alone: pathlib.Path,
  *,
  is_damaged: bool,
) -> tuple[list[str], str]:
  """Resumes a killed run; a damaged run may also be refused.

  Returns:
    A description of a wrong end, and the lines that explain it.
  """
  done = live_runs.run(*command)
  said = done.stderr.strip()
  if 'Traceback' in said:
    return ['a traceback'], said
  if done.returncode:
    refused = done.returncode in (1, 2) and len(said.splitlines()) <= 3
    fine = is_damaged and refused
    return [] if fine else [f'exit code {done.returncode}'], said
  found = live_runs.differences_of_state(left_alone, workdir)
  for name, differences in (
    ('metrics.jsonl', live_runs.differences_of_metrics),
    ('workers.jsonl', live_runs.differences_of_workers),
  ):
    if f'{workdir / name}: ' not in said:  # A line tells the loss.
      found += differences(left_alone, workdir)
  return found, said


def kind(
  options: argparse.Namespace,
) -> tuple[int, tuple[str, ...], Sequence[Case]]:
  """The devices of a run, the flags of all runs, and the cases."""
  if options.simulate:
    return 4, (), simulated()
  if options.mesh:
    return 8, MESH, MESHED
  if options.one_device:
    return 1, ('--config.mapper=vmap',), ALONE
  return 4, (), LATE if options.late else CASES


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--kills', type=int, default=0)
  parser.add_argument('--damages', type=int, default=0)
  kinds = parser.add_mutually_exclusive_group()
  kinds.add_argument('--simulate', action='store_true')
  kinds.add_argument('--mesh', action='store_true')
  kinds.add_argument('--one_device', action='store_true')
  kinds.add_argument('--late', action='store_true')
  parser.add_argument('--device', default='auto', help='device of the runs')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--jobs', type=int, default=1, help='cases at a time')
  parser.add_argument('--out', default='soak.json')
  options = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  devices, flags, cases = kind(options)
  flags += (f'--config.device={options.device}',)
  count = options.kills + options.damages
  numbered = [*enumerate(itertools.islice(itertools.cycle(cases), count))]

  def run_in(folder: pathlib.Path, case: Case) -> list[str]:
    return command(*case, folder, flags)

  def rng_of(*key: object) -> random.Random:
    return random.Random(f'{options.seed} {key}')  # Independent of threads.

  with (
    tempfile.TemporaryDirectory() as temporary,
    futures.ThreadPoolExecutor(options.jobs) as threads,
  ):
    top = pathlib.Path(temporary)
    left_alone = {
      case: top / f'alone-{index}'
      for index, case in enumerate(dict.fromkeys(c for _, c in numbered))
    }
    killed = {
      case: top / f'killed-{number}'
      for number, case in reversed(numbered[options.kills :])
    }

    def leave_alone(case: Case) -> None:
      live_runs.finish(run_in(left_alone[case], case))

    def kill_once(case: Case) -> None:
      while not killed[case].exists():  # A kill may precede it.
        kill(run_in(killed[case], case), killed[case], rng_of(case))

    def check(numbered_case: tuple[int, Case]) -> dict[str, Any]:
      number, case = numbered_case
      workdir, rng = top / f'run-{number}', rng_of(number)
      is_damaged = number >= options.kills
      if is_damaged:
        shutil.copytree(killed[case], workdir)
        what = inflict(workdir, rng)
      else:
        what = kill(run_in(workdir, case), workdir, rng)
      found, said = resume(
        run_in(workdir, case), workdir, left_alone[case], is_damaged=is_damaged
      )
      shutil.rmtree(workdir)
      method, processes = case
      shape = processes and f'{processes} x {devices // processes}'
      print(
        f'{method:16} {shape or "virtual"}  {what}  '
        f'{", ".join(found) or said or "equal bit for bit"}',
        flush=True,
      )
      return dict(
        method=method, processes=processes, what=what, differs=found, said=said
      )

    [*threads.map(leave_alone, left_alone)]
    [*threads.map(kill_once, killed)]
    results = [*threads.map(check, numbered)]
  pathlib.Path(options.out).write_text(json.dumps(results, indent=2) + '\n')
  wrong = sum(bool(result['differs']) for result in results)
  print(f'{len(results)} cases, {wrong} of them wrong')
  sys.exit(bool(wrong))


if __name__ == '__main__':
  main()
