"""Disturbs islands while they train, with every known fault.

  python -m stress.storm --islands=4 --minutes=30

The islands, and their coordinator, are hosts of an emulated cluster, and
train tests/support/slow_digits.py, whose steps leave the CPU idle as with a
GPU. Every --every seconds one island is killed (SIGKILL), at any moment or in
an average; frozen for a moment, or until the others give it up (SIGSTOP); cut
off from the network; asked to leave (SIGTERM); or Python's lock is held in it.
Or two are killed at once; or the island that gives a newcomer its state; or the
coordinator, alone or with an island. Ended processes are started again. The
others must continue, and the victims must train with them again, one after the
other, until all have taken their steps. The reports of two islands on the same
step must be equal, `selsync replay` must compute the same parameters from
their logs, and the validation loss must be plausible for undisturbed runs with
other seeds.

Prints, for each fault, how long the others needed for three steps, and how long
a victim took from its start, or from the end of its fault, until it trained.
Then prints the number of steps, relative to an equally long time before and
after the storm, the share of the islands that took part, and how much longer
than usual the three steps took. The exit code is 1 after any error; missed
goals do not count.

  python -m stress.storm --islands=4 --minutes=30 --restarts

This is the reference: the same faults while the same training is one run of
several processes. When a process ends, all start again from the last
checkpoint, at once, as under a scheduler. Such a run has no coordinator and no
newcomers, so only faults of processes remain. Prints only the number of steps,
relative to the time without faults, and how often all started.
"""

import argparse
import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from scipy import stats

from selsync_jax.islands import journal
from tests.support import emulated, live_runs, slow_digits

PAUSE = 0.25  # Seconds of a step in which the CPU is idle.
TIMEOUT = 1.0  # Seconds until a silent island is given up.
QUIET = 60.0  # Seconds without a fault before the storm, and after it.
CUT = 30.0  # Seconds without a network.
PATIENCE = 120.0  # Seconds within which a victim must train again.
SEEDS = range(100, 105)  # Seeds of undisturbed runs.
MEETING = 10.0  # Seconds in which the processes of one run must meet.
# Steps from one checkpoint of the reference to the next. A save takes some
# 0.1 s, so every sqrt(2 x 0.1 s x 45 s) = 3 s is best (Young 1974).
SAVES = 12
FAULTS = {  # Number of victims of each.
  'killed': 1,
  'killed in an average': 1,
  'frozen': 1,
  'given up': 1,
  'cut off': 1,
  'lock held': 1,
  'dismissed': 1,
  'point killed': 0,
  'both killed': 1,
  'two killed': 2,
  'donor killed': 2,
}
LASTS = {  # Seconds; the others end at once.
  'frozen': TIMEOUT / 3,
  'given up': 2 * TIMEOUT,
  'cut off': CUT,
  'lock held': slow_digits.HELD,
}
CONFIG = 'tests/support/slow_digits.py'
SAME = 'loss', 'synced', 'relative_change', 'samples', 'lssr'


class Training:
  """Processes that train, each on its own host, and one more host.

  Args:
    folder: the folder of their runs.
    islands: N, the number of processes.
    flags: more flags of `train`.
    bandwidth: the rate of each host's link, in tc(8)'s notation.

  Attributes:
    running: the processes by name.
    rate: steps per second without faults, see `ride_out`.
    span: when the faults began and ended, in seconds since 1970.
  """

  rate: float
  span: tuple[float, float]

  def __init__(
    self, folder: pathlib.Path, islands: int, flags: list[str], bandwidth: str
  ):
    self.folder, self._flags = folder, flags
    self.names = [f'island{i}' for i in range(islands)]
    self._hosts = emulated.Hosts(islands + 1, bandwidth, folder)
    self.running: dict[str, subprocess.Popen] = {}

  def begin(self, name: str) -> subprocess.Popen:
    """Starts a process."""
    raise NotImplementedError

  def begin_all(self) -> None:
    """Starts all processes."""
    self.running = {name: self.begin(name) for name in self.names}

  def metrics(self, name: str) -> pathlib.Path:
    """The file of a process's reports."""
    return self.folder / name / 'metrics.jsonl'

  def end(self) -> None:
    """Ends all processes."""
    for process in self.running.values():
      process.kill()
      process.wait()

  def link(self, name: str, state: str) -> None:
    """Sets the link of a process's host `up` or `down`."""
    self._hosts.link(self.names.index(name), state)

  def log(self, name: str) -> str:
    """The output of a process."""
    return (self.folder / f'{name}.log').read_text()

  def last(self, name: str) -> dict:
    """A process's report of its last step."""
    path = self.metrics(name)
    rows = []
    if path.exists():
      with open(path, 'rb') as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().splitlines(keepends=True)[1:]
      rows = [line for line in lines if line.endswith(b'\n')]
    return json.loads(rows[-1]) if rows else {'step': 0, 'synced': 0}

  def step(self, name: str) -> int:
    """The last step of a process; 0 before its first step."""
    return self.last(name)['step']

  def wait(self, name: str, step: int) -> bool:
    """Waits until a process has passed a step; returns whether it has."""
    return until(lambda: self.step(name) > step)

  def _start(self, name: str, *command: str) -> subprocess.Popen:
    host = (*self.names, 'meet').index(name)
    with open(self.folder / f'{name}.log', 'a') as log:
      return self._hosts.start(
        *(host, command),
        cwd=live_runs.ROOT,
        env=os.environ | {'STEP_PAUSE': str(PAUSE)},
        stdout=log,
        stderr=subprocess.STDOUT,
      )


class Storm(Training):
  """Islands, and their coordinator on the last host.

  Attributes:
    pauses: the seconds in which the others took three steps, by fault.
    returns: the seconds from starts of islands to their training.
  """

  def __init__(self, *given: Any):
    super().__init__(*given)
    self.pauses: dict[str, list[float]] = collections.defaultdict(list)
    self.returns: list[float] = []
    self.point = self.meet()
    self._invitation = ''
    while not self._invitation:
      time.sleep(0.1)
      self._invitation = self.log('meet').partition('\n')[0]
    self.begin_all()

  def meet(self) -> subprocess.Popen:
    """Starts the coordinator."""
    islands = len(self.names)
    least, keep = max(1, islands - 2), f'--keep={self.folder}/point.json'
    return self._start(
      *('meet', sys.executable, '-m', 'selsync_jax', 'meet'),
      *(f'--host=host{islands}', f'--islands={islands}', f'--minimum={least}'),
      *(keep, f'--log={self.folder}/events.jsonl'),
    )

  def begin(self, name: str) -> subprocess.Popen:
    """Starts an island."""
    given = f'--island={name}', f'--join={self._invitation}'
    train = train_command(self.folder, self._flags)
    return self._start(name, *train, *given, f'--cluster_timeout={TIMEOUT}')

  def end(self) -> None:
    """Ends the coordinator and all islands."""
    self.point.kill()
    self.point.wait()
    super().end()

  def events(self) -> list[journal.Event]:
    """The events of joining and leaving islands."""
    lines = (self.folder / 'events.jsonl').read_text().splitlines()
    return [journal.Event(**json.loads(line)) for line in lines]

  def back(self, name: str, step: int) -> float | None:
    """Starts an island whenever it has ended, until it has passed a step.

    Returns:
      The seconds since its last start; `None` if it never passes the step.
    """
    began = deadline = time.monotonic()
    deadline += PATIENCE
    while time.monotonic() < deadline:
      if self.running[name].poll() is not None:
        self.running[name], began = self.begin(name), time.monotonic()
      if self.step(name) > step:
        self.returns.append(took := time.monotonic() - began)
        return took
      time.sleep(0.02)
    return None

  def rows(self, name: str) -> dict[int, dict]:
    """An island's report of each step."""
    rows = self.metrics(name).read_text().splitlines()
    return {row['step']: row for row in map(json.loads, rows)}


class Restarted(Training):
  """One run of all processes, which start again whenever one has ended.

  Attributes:
    starts: how often all have started.
  """

  def __init__(self, *given: Any):
    super().__init__(*given)
    self.begin_all()
    self.starts, self._is_over = 1, threading.Event()
    self._supervisor = threading.Thread(target=self._supervise)
    self._supervisor.start()

  def begin(self, name: str) -> subprocess.Popen:
    """Starts a process."""
    more = *self._flags, f'--config.checkpoint.every={SAVES}'
    return self._start(
      *(name, *train_command(self.folder / 'run', more)),
      *('--coordinator=host0:7000', f'--num_processes={len(self.names)}'),
      *(f'--process_id={self.names.index(name)}',),
      f'--cluster_timeout={MEETING}',
    )

  def metrics(self, name: str) -> pathlib.Path:
    """The file of all processes' reports."""
    return super().metrics('run')

  def end(self) -> None:
    """Ends all processes for good."""
    self._is_over.set()
    self._supervisor.join()
    super().end()

  def _supervise(self) -> None:
    while not self._is_over.wait(0.1):
      if any(each.poll() is not None for each in self.running.values()):
        super().end()
        self.begin_all()
        self.starts += 1


def train_command(workdir: pathlib.Path, flags: Sequence[str]) -> list[str]:
  """The command of an undisturbed run of the same training."""
  return live_runs.command('selsync', 1, workdir, *flags, config=CONFIG)


def until(holds: Callable[[], Any]) -> bool:
  """Waits until a condition holds; returns whether it does."""
  deadline = time.monotonic() + PATIENCE
  while time.monotonic() < deadline:
    if holds():
      return True
    time.sleep(0.02)
  return False


def strike(storm: Training, kind: str, victims: list[str]) -> None:
  """Starts a fault."""
  if kind == 'killed in an average':  # It takes some steps.
    until(lambda: storm.last(victims[0])['synced'])
  number = {
    'dismissed': signal.SIGTERM,
    'frozen': signal.SIGSTOP,
    'given up': signal.SIGSTOP,
    'lock held': signal.SIGUSR1,
  }.get(kind, signal.SIGKILL)
  for name in victims:
    if kind == 'cut off':
      storm.link(name, 'down')
    else:
      storm.running[name].send_signal(number)


def release(storm: Training, kind: str, name: str, began: float) -> None:
  """Ends a fault that would otherwise last."""
  time.sleep(max(0.0, began + LASTS.get(kind, 0.0) - time.monotonic()))
  if kind == 'cut off':
    storm.link(name, 'up')
  elif kind in ('frozen', 'given up'):
    storm.running[name].send_signal(signal.SIGCONT)
  elif kind == 'dismissed':
    storm.running[name].wait(PATIENCE)


def disturb(storm: Storm, kind: str, victims: list[str]) -> Iterator[str]:
  """Inflicts a fault on victims, and yields errors of the other islands."""
  struck = victims
  if kind == 'donor killed':  # The first island gives a newcomer its state.
    struck, known = [min(set(storm.names) - {victims[0]})], len(storm.events())
    victims = [victims[0], *struck]
    storm.running[victims[0]].kill()
    storm.running[victims[0]].wait()
    storm.running[victims[0]] = storm.begin(victims[0])
    admitted = 'admitted', victims[0]
    until(lambda: admitted in [each[1:3] for each in storm.events()[known:]])
  other = next(name for name in storm.names if name not in victims)
  began = time.monotonic()
  strike(storm, kind, struck)
  if kind in ('point killed', 'both killed'):
    storm.point.kill()
    storm.point.wait()
    storm.point = storm.meet()
  if kind == 'frozen':
    release(storm, kind, victims[0], began)
  goes_on = storm.wait(other, storm.step(other) + 2)
  storm.pauses[kind].append(paused := time.monotonic() - began)
  line = f'{kind:20} {" ".join(victims):16} {paused:5.1f} s'
  if victims and kind != 'frozen':
    release(storm, kind, victims[0], began)
    reached = max(map(storm.step, storm.names)) + 1
    times = [storm.back(name, reached) for name in victims]
    if None in times:
      yield f'{victims} have not rejoined'
    line += f', back after {max(each or 0.0 for each in times):4.1f} s'
  if not goes_on or not storm.wait(other, storm.step(other)):
    yield f'{other} does not continue'
  print(line, flush=True)


def disturb_all(run: Restarted, kind: str, victims: list[str]) -> list[str]:
  """Inflicts a fault on processes of one run; there is no coordinator."""
  began = time.monotonic()
  if victims:
    strike(run, kind, victims)
    release(run, kind, victims[0], began)
    print(f'{kind:20} {" ".join(victims)}', flush=True)
  return []


def compare(storm: Storm) -> Iterator[str]:
  """Yields the differences between two islands' reports of a step."""
  first, *others = [storm.rows(name) for name in storm.names]
  for name, rows in zip(storm.names[1:], others, strict=True):
    common = first.keys() & rows.keys()
    print(f'{name}: {len(common)} steps that {storm.names[0]} has, too')
    for step in sorted(common):
      if any(first[step][key] != rows[step][key] for key in SAME):
        yield f'{name} differs in step {step}'
        break
  for name in storm.names:
    if 'Traceback' in storm.log(name):
      yield f'{name} has printed a traceback'


def repeat(folder: pathlib.Path) -> Iterator[str]:
  """Yields errors if one process computes other parameters."""
  began = time.monotonic()
  done = live_runs.run(
    *(sys.executable, '-m', 'selsync_jax', 'replay', folder),
    f'--config={CONFIG}',
    timeout=None,
  )
  print(f'repeated in {time.monotonic() - began:.0f} s', done.stdout, sep='\n')
  if done.returncode:
    yield done.stderr


def judge(storm: Storm, flags: list[str]) -> Iterator[str]:
  """Yields errors if undisturbed runs have other losses."""

  def loss(name):
    path = storm.folder / name / 'summary.json'
    return json.loads(path.read_text())['validation_loss']

  def train(seed):
    more = *flags, f'--config.seed={seed}'
    command = train_command(storm.folder / f'seed{seed}', more)
    return live_runs.run(*command, timeout=None)

  with futures.ThreadPoolExecutor(2) as pool:
    done = dict(zip(SEEDS, pool.map(train, SEEDS), strict=True))
  failed = [f'seed{n}: {d.stderr}' for n, d in done.items() if d.returncode]
  if failed:
    yield from failed
    return
  calm = [loss(f'seed{seed}') for seed in SEEDS]
  mean, n = statistics.mean(calm), len(calm)
  # The 95% interval of Student's t for one more run.
  wide = stats.t.ppf(0.975, n - 1) * statistics.stdev(calm)
  wide *= (1 + 1 / n) ** 0.5
  found = loss(storm.names[0])
  print(f'validation loss {found:.4f}, undisturbed {mean:.4f} +- {wide:.4f}')
  if abs(found - mean) > wide:
    yield f'the validation loss is none of {calm}'


def faults(options: argparse.Namespace, names: list[str]) -> Iterator[Any]:
  """Yields each fault's kind and victims; the seed decides them."""
  rng = random.Random(options.seed)
  kinds = [kind for kind, n in FAULTS.items() if options.islands > n]
  while True:
    for kind in reversed(rng.sample(kinds, len(kinds))):  # Each kind in turn.
      yield kind, rng.sample(names, FAULTS[kind])


def ride_out(
  run: Any,
  options: argparse.Namespace,
  disturb: Callable[[Any, str, list[str]], Iterable[str]],
) -> Iterator[str]:
  """Disturbs a training until its time is over; yields errors."""
  for name in run.names:
    if not run.wait(name, 20):
      yield f'{name} does not train'
      return
  before, first = undisturbed(run), run.names[0]
  step, began = run.step(first), time.time()
  for kind, victims in faults(options, run.names):
    start = time.time()
    if start >= began + 60 * options.minutes:
      break
    wrong = [*disturb(run, kind, victims)]
    if wrong:
      yield from wrong
      return
    time.sleep(max(0.0, start + options.every - time.time()))
  taken, run.span = run.step(first) - step, (began, time.time())
  if not run.wait(first, run.step(first)):
    yield f'{first} does not continue'
  run.rate = statistics.mean([before, undisturbed(run)])
  share = taken / (run.span[1] - began) / run.rate
  print(f'{taken} steps, {share:.1%} of those without a fault (goal 97.7%)')


def undisturbed(run: Training) -> float:
  """The number of steps per second without faults."""
  step, began = run.step(run.names[0]), time.monotonic()
  time.sleep(QUIET)
  return (run.step(run.names[0]) - step) / (time.monotonic() - began)


def tell(storm: Storm) -> Iterator[str]:
  """Prints what the islands have done; yields errors."""
  began, ended = storm.span
  trained = present(storm, ended) - present(storm, began)
  part = trained / (ended - began) / len(storm.names)
  alive = trained / (trained + sum(storm.returns))
  print(f'{part:.1%} of the islands took part')
  print(f'{alive:.1%} of those alive took part (goal 90%)')
  usual, longest = statistics.median(storm.returns), max(storm.returns)
  print(f'back after {usual:.1f} s (median) to {longest:.1f} s (goal 10 s)')
  for kind, pauses in storm.pauses.items():
    more = [max(0.0, pause - 3 / storm.rate) for pause in pauses]
    print(f'{kind}: {min(more):.1f} to {max(more):.1f} s longer (goal 5 s)')
  codes = {name: each.wait(600) for name, each in storm.running.items()}
  if any(codes.values()):
    yield f'exit codes {codes}'
    return
  yield from compare(storm)


def present(storm: Storm, until: float) -> float:
  """The total seconds in which islands have taken part until a time."""
  totals = journal.Totals()
  events = [event for event in storm.events() if event.time < until]
  for event in [*events, journal.Event(until, '', '', '')]:
    totals = totals.after(event)
  return totals.taken


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--islands', type=int, default=4)
  parser.add_argument('--minutes', type=float, default=30.0)
  parser.add_argument('--every', type=float, default=45.0, help='seconds')
  parser.add_argument('--seed', type=int, default=0)
  about = "of a host, in tc(8)'s notation"
  parser.add_argument('--bandwidth', default='100mbit', help=about)
  about = 'train one run, whose processes all start again after each fault'
  parser.add_argument('--restarts', action='store_true', help=about)
  parser.add_argument('--inside', action='store_true', help=argparse.SUPPRESS)
  options = parser.parse_args()
  if not options.inside:
    if reason := emulated.missing():
      sys.exit(f'storm.py: {reason}')
    again = '--inside', *sys.argv[1:]
    sys.exit(emulated.inside('stress.storm', *again).returncode)
  flags = [
    f'--config.workers={options.islands}',
    # A step takes a quarter of a second and a bit, so all outlast the storm.
    f'--config.steps={int(230 * (options.minutes + 3))}',
    '--config.batch_size=8',
    '--config.checkpoint.every=1000',
    '--config.eval.every_epochs=1e6',
    '--config.log.fetch_every=1',
    '--config.sync.delay=3',
  ]
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    given = folder, options.islands, flags, options.bandwidth
    run = Restarted(*given) if options.restarts else Storm(*given)
    try:
      if isinstance(run, Restarted):
        wrong = [*ride_out(run, options, disturb_all)]
        print(f'all processes started {run.starts} times')
      else:
        wrong = [*ride_out(run, options, disturb)] or [*tell(run)]
        wrong = wrong or [*repeat(folder), *judge(run, flags)]
    finally:
      run.end()
    if wrong:
      for path in sorted(folder.glob('*.log')):
        print(f'--- {path.stem}', path.read_text()[-2000:], sep='\n')
  print('\n'.join(wrong) or 'nothing was wrong')
  sys.exit(bool(wrong))


if __name__ == '__main__':
  main()
