"""Kills, freezes and dismisses islands while they train, and starts them again.

  python -m stress.storm --islands=4 --minutes=10

Every --every seconds, one island is killed (SIGKILL), frozen for a moment or
for so long that the others give it up (SIGSTOP), or asked to leave (SIGTERM);
or two are killed at once; or their meeting point is killed, or both it and an
island. Whoever has ended is started again; one that was given up comes again by
itself. The others must go on, and it must train with them again. At the end,
all are stopped. Whatever two islands say of the same step must be the same, and
`selsync replay` must compute the same parameters from their logs.

Prints, for each fault, how long the others paused, and how long it took from
the start of the victim until it trained, while they went on; then how many
steps were taken, relative to as many seconds without a fault. The exit code is
1 if anything was wrong.
"""

import argparse
from collections.abc import Iterator
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from tests.support import live_runs

TIMEOUT = 3.0  # Seconds until a silent island is given up.
QUIET = 20.0  # Seconds without a fault at the beginning.
PATIENCE = 120.0  # Seconds until a victim must train again.
FAULTS = {  # How many islands each has as its victims.
  'killed': 1,
  'frozen': 1,
  'given up': 1,
  'dismissed': 1,
  'point killed': 0,
  'both killed': 1,
  'two killed': 2,
}
SAME = 'loss', 'synced', 'relative_change', 'samples', 'lssr'


class Storm:
  """Islands as processes, and their meeting point.

  Args:
    folder: where they have their runs.
    islands: N, their number.
    flags: more flags of `train`.
  """

  def __init__(self, folder: pathlib.Path, islands: int, flags: list[str]):
    self._folder, self._flags = folder, flags
    self.names = [f'island{i}' for i in range(islands)]
    self._port = live_runs.free_port()
    self.point = self.meet()
    self._invitation = ''
    while not self._invitation:
      time.sleep(0.1)
      self._invitation = self.log('meet').partition('\n')[0]
    self.running = {name: self.begin(name) for name in self.names}

  def meet(self) -> subprocess.Popen:
    """Starts the meeting point."""
    islands = len(self.names)
    return self._start(
      'meet',
      *('selsync_jax', 'meet', f'--islands={islands}', '--host=127.0.0.1'),
      *(f'--port={self._port}', f'--keep={self._folder}/point.json'),
      f'--minimum={max(1, islands - 2)}',
    )

  def begin(self, name: str) -> subprocess.Popen:
    """Starts an island."""
    train = live_runs.command('selsync', 1, self._folder, *self._flags)[1:]
    given = f'--island={name}', f'--join={self._invitation}'
    return self._start(name, *train, *given, f'--cluster_timeout={TIMEOUT}')

  def log(self, name: str) -> str:
    """What an island, or the meeting point, has said."""
    return (self._folder / f'{name}.log').read_text()

  def step(self, name: str) -> int:
    """The last step that an island has taken, 0 before the first."""
    path = self._folder / name / 'metrics.jsonl'
    if not path.exists():
      return 0
    with open(path, 'rb') as file:
      file.seek(max(0, path.stat().st_size - 4096))
      lines = file.read().splitlines(keepends=True)[1:]
    whole = [line for line in lines if line.endswith(b'\n')]
    return json.loads(whole[-1])['step'] if whole else 0

  def wait(self, name: str, step: int, patience: float = PATIENCE) -> bool:
    """Waits until an island has gone beyond a step; returns whether it has."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
      if self.step(name) > step:
        return True
      time.sleep(0.02)
    return False

  def rows(self, name: str) -> dict[int, dict]:
    """What an island says of each step."""
    rows = (self._folder / name / 'metrics.jsonl').read_text().splitlines()
    return {row['step']: row for row in map(json.loads, rows)}

  def _start(self, name: str, *arguments: str) -> subprocess.Popen:
    script = [] if arguments[0].endswith('.py') else ['-m']
    with open(self._folder / f'{name}.log', 'a') as log:
      return subprocess.Popen(
        [sys.executable, *script, *arguments],
        cwd=live_runs.ROOT,
        stdout=log,
        stderr=subprocess.STDOUT,
      )


def disturb(storm: Storm, kind: str, victims: list[str]) -> Iterator[str]:
  """Does something to victims, and yields what was wrong with the others."""
  others = [name for name in storm.names if name not in victims]
  before, began = storm.step(others[0]), time.monotonic()
  processes = [storm.running[name] for name in victims]
  number = {'dismissed': signal.SIGTERM}.get(kind, signal.SIGKILL)
  if kind in ('frozen', 'given up'):
    number = signal.SIGSTOP
  for process in processes:
    process.send_signal(number)
  if kind in ('point killed', 'both killed'):
    storm.point.kill()
    storm.point.wait()
    storm.point = storm.meet()
  if kind == 'frozen':
    time.sleep(TIMEOUT / 3)
    processes[0].send_signal(signal.SIGCONT)
  if kind == 'given up':
    time.sleep(TIMEOUT)
  at = storm.step(others[0])
  goes_on = storm.wait(others[0], max(at, before + 2))
  pause, line = time.monotonic() - began, ''
  if kind == 'given up':
    processes[0].send_signal(signal.SIGCONT)
  if victims and kind != 'frozen':
    for name, process in zip(victims, processes, strict=True):
      if kind != 'given up':
        process.wait(PATIENCE)
        storm.running[name] = storm.begin(name)
    started, reached = time.monotonic(), storm.step(others[0])
    for name in victims:
      if not storm.wait(name, reached):
        yield f'{name} has not come again'
    line = f', back after {time.monotonic() - started:4.1f} s'
  if not goes_on or not storm.wait(others[0], storm.step(others[0])):
    yield f'{others[0]} does not go on'
  print(f'{kind:12} {" ".join(victims)}: {pause:4.1f} s{line}', flush=True)


def compare(storm: Storm) -> Iterator[str]:
  """Yields where two islands differ in what they say of a step."""
  first, *others = [storm.rows(name) for name in storm.names]
  for name, rows in zip(storm.names[1:], others, strict=True):
    common = first.keys() & rows.keys()
    print(f'{name}: {len(common)} steps that {storm.names[0]} has, too')
    for step in sorted(common):
      if any(first[step][key] != rows[step][key] for key in SAME):
        yield f'{name} differs in step {step}'
        break


def repeat(folder: pathlib.Path) -> Iterator[str]:
  """Yields what is wrong if one process computes something else."""
  began = time.monotonic()
  done = live_runs.run(
    *(sys.executable, '-m', 'selsync_jax', 'replay', folder), timeout=None
  )
  print(f'repeated in {time.monotonic() - began:.0f} s', done.stdout, sep='\n')
  if done.returncode:
    yield done.stderr


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--islands', type=int, default=4)
  parser.add_argument('--minutes', type=float, default=10.0)
  parser.add_argument('--every', type=float, default=45.0, help='seconds')
  parser.add_argument('--seed', type=int, default=0)
  options = parser.parse_args()
  rng = random.Random(options.seed)
  kinds = [kind for kind, n in FAULTS.items() if options.islands - n > 1]
  flags = [
    f'--config.workers={options.islands}',
    '--config.steps=1000000',
    '--config.checkpoint.every=1000',
    '--config.eval.every_epochs=1e6',
    '--config.sync.delay=3',
  ]
  wrong = []
  with tempfile.TemporaryDirectory() as name:
    storm = Storm(pathlib.Path(name), options.islands, flags)
    try:
      for island in storm.names:
        if not storm.wait(island, 20):
          sys.exit(f'{island} does not train: {storm.log(island)}')
      first, began = storm.step(storm.names[0]), time.monotonic()
      time.sleep(QUIET)
      rate = (storm.step(storm.names[0]) - first) / (time.monotonic() - began)
      first, began = storm.step(storm.names[0]), time.monotonic()
      while time.monotonic() < began + 60 * options.minutes and not wrong:
        start = time.monotonic()
        kind = rng.choice(kinds)
        victims = rng.sample(storm.names, FAULTS[kind])
        wrong += disturb(storm, kind, victims)
        time.sleep(max(0.0, start + options.every - time.monotonic()))
      taken = storm.step(storm.names[0]) - first
      share = taken / (time.monotonic() - began) / rate
      print(f'{taken} steps, {share:.1%} of those without a fault')
      for process in storm.running.values():
        process.send_signal(signal.SIGTERM)
      codes = [process.wait(PATIENCE) for process in storm.running.values()]
      wrong += [f'exit codes {codes}'] * (codes != [75] * len(codes))
      wrong += compare(storm)
      wrong += repeat(pathlib.Path(name))
    finally:
      if wrong:
        for each in ('meet', *storm.names):
          print(f'--- {each}', storm.log(each)[-2000:], sep='\n')
      for process in (storm.point, *storm.running.values()):
        process.kill()
        process.wait()
  print('\n'.join(wrong) or 'nothing was wrong')
  sys.exit(bool(wrong))


if __name__ == '__main__':
  main()
