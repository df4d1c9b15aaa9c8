"""Islands next to torchft and hivemind.

  python -m benchmarks.network.beside_peers --into=benchmarks/README.md

Trains one small network with local SGD on workers of this machine: with islands
of this package, with torchft's `LocalSGD`, and with hivemind's
`DecentralizedAverager`. All have the same network, period, batch size, and
timeout, send float32, and leave the CPU idle for a part of each step, as with a
GPU. A worker writes a line at the start of each step, and all figures come from
these lines. After undisturbed seconds comes a storm: one worker after the other
is killed (SIGKILL, with all of its processes) and started again at once, in an
order and at moments that the seed decides. Prints one table, and writes
beside_peers.json and, with --into, the table into a page, between
`<!-- beside_peers: ... -->` and `<!-- /beside_peers -->`.

Needs the extras `train`, `islands` and `peers`.
"""

from collections.abc import Callable
import contextlib
import importlib.metadata
import importlib.util
import itertools
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks import marked
from benchmarks.network import peers
from benchmarks.table import markdown, page_with, parser, report, Table

SIDES = {  # The packages of each side.
  'islands': ('jax', 'pyarrow'),
  'torchft': ('torchft', 'torch'),
  'hivemind': ('hivemind', 'torch'),
}
WARM = 3  # Averages before the undisturbed seconds.
CALM = 20.0  # Seconds that are undisturbed.
EVERY = 18.0  # Seconds from one kill to the next.
PATIENCE = 90.0  # Seconds until a worker that takes part in no average fails.
UNMEASURED = {  # Read in the documentation of each, in the order of `SIDES`.
  'messages encrypted, as run here': ('yes', 'no', 'yes'),
  "a lost worker's batches read again": ('yes', 'not offered', 'not offered'),
}


class Line(NamedTuple):
  """A worker's line, see `peers.Lines`; the time is in seconds since 1970."""

  time: float
  averages: int
  kept: int


class Kill(NamedTuple):
  """A kill, and the victim's next average, in seconds since 1970."""

  victim: str
  struck: float
  back: float


def meeting(side: str, workers: int) -> list[str]:
  """The arguments of the program that workers meet at."""
  if side == 'islands':
    given = f'--islands={workers}', '--minimum=1'
    given += '--host=127.0.0.1', '--port=0'
    return ['selsync_jax', 'meet', *given]
  return [f'{peers.__name__}.{side}_worker', 'meet']


def training(side: str, workers: int, name: str, address: str) -> list[str]:
  """The arguments of a worker's program."""
  if side == 'islands':
    config = pathlib.Path(peers.__path__[0], 'island.py')
    given = f'--config={config}', f'--config.workers={workers}', '--noreport'
    given += f'--island={name}', f'--join={address}', '--workdir=run'
    given += (f'--cluster_timeout={peers.TIMEOUT}',)
    return ['selsync_jax', 'train', *given]
  return [f'{peers.__name__}.{side}_worker', name, address, str(workers)]


class Workers:
  """Context with the processes of one side.

  Attributes:
    names: the workers' names.
    sessions: the files of each worker's lines, one for each of its starts.
  """

  def __init__(self, side: str, workers: int, folder: pathlib.Path):
    self._side, self._folder = side, folder
    self.names = [f'worker{i}' for i in range(workers)]
    self.sessions: dict[str, list[pathlib.Path]] = {x: [] for x in self.names}
    self._running: dict[str, subprocess.Popen] = {}

  def __enter__(self) -> 'Workers':
    return self

  def __exit__(self, *exc: Any) -> None:
    for name in self._running:
      self.kill(name)

  def begin_all(self) -> None:
    """Starts the program that workers meet at, and the workers."""
    self._start('meet', meeting(self._side, len(self.names)))
    log = self._folder / 'meet.out'
    self.wait(lambda: '\n' in log.read_text(), 'the meeting point')
    self._address = log.read_text().partition('\n')[0]
    for name in self.names:
      self.begin(name)

  def _start(self, name: str, arguments: list[str], lines: str = '') -> None:
    # One thread takes a worker's steps, because workers share the cores.
    env = os.environ | {peers.LINES: lines, 'OMP_NUM_THREADS': '1'}
    env |= {'XLA_FLAGS': '--xla_cpu_multi_thread_eigen=false'}
    env |= {'PYTHONPATH': str(pathlib.Path(__file__).parents[2])}
    with (
      (self._folder / f'{name}.out').open('a') as out,
      (self._folder / f'{name}.err').open('a') as err,
    ):
      self._running[name] = subprocess.Popen(
        [sys.executable, '-m', *arguments],
        cwd=self._folder,
        env=env,
        stdout=out,
        stderr=err,
        start_new_session=True,
      )

  def begin(self, name: str) -> None:
    """Starts a worker."""
    lines = self._folder / f'{name}.{len(self.sessions[name])}'
    lines.touch()
    self.sessions[name].append(lines)
    about = self._side, len(self.names), name, self._address
    self._start(name, training(*about), str(lines))

  def kill(self, name: str) -> None:
    """Kills a worker, with all processes that it has started."""
    process = self._running[name]
    with contextlib.suppress(ProcessLookupError):  # All have ended.
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()

  def averages(self, name: str) -> int:
    """The number of averages since a worker's last start."""
    lines = read(self.sessions[name][-1])
    return lines[-1].averages if lines else 0

  def wait(self, holds: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds; starts workers that have ended.

    Raises:
      TimeoutError: if it does not hold in time.
    """
    deadline = time.time() + PATIENCE
    while not holds():
      if time.time() > deadline:
        raise TimeoutError(f'{what}: nothing after {PATIENCE:.0f} s')
      for name in self.names:
        if name in self._running and self._running[name].poll() is not None:
          self.kill(name)  # Processes that it has left.
          self.begin(name)
      time.sleep(0.05)

  def wait_for_averages(self, count: int) -> None:
    """Waits until all workers have taken part in that many more averages."""
    for name in self.names:
      least = self.averages(name) + count
      self.wait(lambda n=name, x=least: self.averages(n) >= x, name)


def read(path: pathlib.Path) -> list[Line]:
  """The whole lines of a worker."""
  rows = [line.split() for line in path.read_text().split('\n')[:-1]]
  return [Line(float(time), int(n), int(kept)) for time, n, kept in rows]


def storm(workers: Workers, kills: int, rng: random.Random) -> list[Kill]:
  """Kills one worker after the other, and starts it again."""
  found, victims = [], rng.sample(workers.names, len(workers.names))
  for victim in itertools.islice(itertools.cycle(victims), kills):
    start = time.time()
    time.sleep(rng.uniform(0, peers.PERIOD * peers.PAUSE))
    struck = time.time()
    workers.kill(victim)
    workers.begin(victim)
    workers.wait(lambda name=victim: workers.averages(name) > 0, victim)
    found.append(Kill(victim, struck, time.time()))
    time.sleep(max(0.0, start + EVERY - time.time()))
  return found


def kept(sessions: list[list[Line]], at: float) -> float:
  """The number of steps in averages until a time, of all workers.

  It grows evenly from one average to the next.
  """
  total = 0.0
  for lines in sessions:
    pairs = itertools.pairwise(lines)
    ends = [lines[0], *(b for a, b in pairs if b.averages > a.averages)]
    total += np.interp(at, [x.time for x in ends], [x.kept for x in ends])
  return total


class Step(NamedTuple):
  """A step of a worker, and whether it ended with an average."""

  seconds: float
  averages: bool


def steps(lines: list[Line], start: float, stop: float) -> list[Step]:
  """A worker's steps that lie, at least in part, in a span of time."""
  return [
    Step(after.time - before.time, after.averages > before.averages)
    for before, after in itertools.pairwise(lines)
    if before.time < stop and after.time > start
  ]


def figures(
  sessions: dict[str, list[list[Line]]],
  calm: tuple[float, float],
  stormy: tuple[float, float],
  kills: list[Kill],
) -> dict[str, Any]:
  """The figures in the lines of all workers."""
  every = [lines for each in sessions.values() for lines in each if lines]

  def rate(start, stop):
    return (kept(every, stop) - kept(every, start)) / (stop - start)

  def seconds(averages):
    found = [step for lines in every for step in steps(lines, *calm)]
    return statistics.median(x.seconds for x in found if x.averages == averages)

  def pause(kill):
    return max(
      step.seconds
      for name, each in sessions.items()
      for lines in each
      for step in steps(lines, kill.struck, kill.back)
      if name != kill.victim
    )

  quiet, averaging = seconds(False), seconds(True)
  return {
    'quiet': quiet,
    'average': averaging - quiet,
    'step': len(sessions) / rate(*calm),
    'pauses': [max(0.0, pause(kill) - averaging) for kill in kills],
    'returns': [kill.back - kill.struck for kill in kills],
    'kept': rate(*stormy) / rate(*calm),
    'starts': {name: len(each) for name, each in sessions.items()},
  }


def measure(side: str, count: int, options: Any) -> dict[str, Any]:
  """The figures of one side, or the `error`."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    try:
      with Workers(side, count, folder) as workers:
        workers.begin_all()
        workers.wait_for_averages(WARM)
        began = time.time()
        time.sleep(CALM)
        ended = time.time()
        kills = storm(workers, options.kills, random.Random(options.seed))
        over = time.time()
        workers.wait_for_averages(1)
      sessions = {x: [*map(read, y)] for x, y in workers.sessions.items()}
      return figures(sessions, (began, ended), (ended, over), kills)
    except TimeoutError as error:
      for log in sorted(folder.glob('*.err')):
        print(f'--- {side}, {log.stem}', log.read_text()[-2000:], sep='\n')
      return {'error': str(error)}


def span(values: list[float]) -> str:
  """The median and the longest of some seconds."""
  return f'{statistics.median(values):.1f} ({max(values):.1f})'


ROWS: dict[str, Callable[[dict[str, Any]], str]] = {
  'a step without an average, ms': lambda x: f'{1e3 * x["quiet"]:.1f}',
  f'a step, an average every {peers.PERIOD}, ms': (
    lambda x: f'{1e3 * x["step"]:.1f}'
  ),
  'an average alone, ms': lambda x: f'{1e3 * x["average"]:.1f}',
  "the others' pause after a kill, s": lambda x: span(x['pauses']),
  "a victim's return, s": lambda x: span(x['returns']),
  'steps kept in the storm': lambda x: f'{x["kept"]:.1%}',
}


def main() -> None:
  flags = parser(__doc__, 'beside_peers.json', kills=4, seed=0)
  flags.add_argument('--workers', type=int, nargs='+', default=[2, 4])
  flags.add_argument('--sides', nargs='+', default=[*SIDES], choices=SIDES)
  flags.add_argument('--into', type=page_with('beside_peers'), help='a page')
  options = flags.parse_args()
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Kill the workers.
  packages = dict.fromkeys(x for side in options.sides for x in SIDES[side])
  for name in packages:
    if not importlib.util.find_spec(name):
      sys.exit(f"beside_peers.py: needs {name}: pip install '.[islands,peers]'")
  versions = [f'{name} {importlib.metadata.version(name)}' for name in packages]
  cells, found = [], {}
  for count, side in itertools.product(options.workers, options.sides):
    each = found[f'{side}, {count}'] = measure(side, count, options)
    column = [each.get('error') or cell(each) for cell in ROWS.values()]
    place = [*SIDES].index(side)
    cells.append(column + [known[place] for known in UNMEASURED.values()])
  rows = [*zip([*ROWS, *UNMEASURED], *cells, strict=True)]
  table = Table(
    ['', *found], rows, f'{os.cpu_count()} cores, {", ".join(versions)}'
  )
  if options.into:
    lines = [table.head, ['---', *['---:'] * len(found)], *table.rows]
    text = f'\n{table.title}:\n\n{markdown(lines)}'
    marked.insert(text, options.into, 'beside_peers')
  result = {'seed': options.seed, 'versions': versions, 'figures': found}
  report(options.out, result, table)


if __name__ == '__main__':
  main()
