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
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
import json
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time
from typing import Any

from scipy import stats

from selsync_jax.islands import journal
from stress import disturbed
from stress.disturbed import Islands, Restarted, Training
from tests.support import emulated, live_runs, slow_digits

QUIET = 60.0  # Seconds without a fault before the storm, and after it.
CUT = 30.0  # Seconds without a network.
SEEDS = range(100, 105)  # Seeds of undisturbed runs.
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
  'frozen': disturbed.TIMEOUT / 3,
  'given up': 2 * disturbed.TIMEOUT,
  'cut off': CUT,
  'lock held': slow_digits.HELD,
}
SAME = 'loss', 'synced', 'relative_change', 'samples', 'lssr'


def strike(run: Training, kind: str, victims: list[str]) -> None:
  """Starts a fault."""
  if kind == 'killed in an average':  # It takes some steps.
    disturbed.until(lambda: run.last(victims[0])['synced'])
  number = {
    'dismissed': signal.SIGTERM,
    'frozen': signal.SIGSTOP,
    'given up': signal.SIGSTOP,
    'lock held': signal.SIGUSR1,
  }.get(kind, signal.SIGKILL)
  for name in victims:
    if kind == 'cut off':
      run.link(name, 'down')
    else:
      run.running[name].send_signal(number)


def release(run: Training, kind: str, name: str, began: float) -> None:
  """Ends a fault that would otherwise last."""
  time.sleep(max(0.0, began + LASTS.get(kind, 0.0) - time.monotonic()))
  if kind == 'cut off':
    run.link(name, 'up')
  elif kind in ('frozen', 'given up'):
    run.running[name].send_signal(signal.SIGCONT)
  elif kind == 'dismissed':
    run.running[name].wait(disturbed.PATIENCE)


def disturb(run: Islands, kind: str, victims: list[str]) -> Iterator[str]:
  """Inflicts a fault on victims, and yields errors of the other islands."""
  struck = victims
  if kind == 'donor killed':  # The first island gives a newcomer its state.
    struck, known = [min(set(run.names) - {victims[0]})], len(run.events())
    victims = [victims[0], *struck]
    run.running[victims[0]].kill()
    run.running[victims[0]].wait()
    run.running[victims[0]] = run.begin(victims[0])
    admitted = 'admitted', victims[0]
    disturbed.until(
      lambda: admitted in [each[1:3] for each in run.events()[known:]]
    )
  other = next(name for name in run.names if name not in victims)
  began = time.monotonic()
  strike(run, kind, struck)
  if kind in ('point killed', 'both killed'):
    run.point.kill()
    run.point.wait()
    run.point = run.meet()
  if kind == 'frozen':
    release(run, kind, victims[0], began)
  goes_on = run.wait(other, run.step(other) + 2)
  run.pauses[kind].append(paused := time.monotonic() - began)
  line = f'{kind:20} {" ".join(victims):16} {paused:5.1f} s'
  if victims and kind != 'frozen':
    release(run, kind, victims[0], began)
    reached = max(map(run.step, run.names)) + 1
    times = [run.back(name, reached) for name in victims]
    if None in times:
      yield f'{victims} have not rejoined'
    line += f', back after {max(each or 0.0 for each in times):4.1f} s'
  if not goes_on or not run.wait(other, run.step(other)):
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


def compare(run: Islands) -> Iterator[str]:
  """Yields the differences between two islands' reports of a step."""
  first, *others = [
    {row['step']: row for row in live_runs.rows(run.folder / name)}
    for name in run.names
  ]
  for name, rows in zip(run.names[1:], others, strict=True):
    common = first.keys() & rows.keys()
    print(f'{name}: {len(common)} steps that {run.names[0]} has, too')
    for step in sorted(common):
      if any(first[step][key] != rows[step][key] for key in SAME):
        yield f'{name} differs in step {step}'
        break
  for name in run.names:
    if 'Traceback' in run.log(name):
      yield f'{name} has printed a traceback'


def repeat(folder: pathlib.Path) -> Iterator[str]:
  """Yields errors if one process computes other parameters."""
  began = time.monotonic()
  done = live_runs.run(
    *(sys.executable, '-m', 'selsync_jax', 'replay', folder),
    f'--config={disturbed.CONFIG}',
    timeout=None,
  )
  print(f'repeated in {time.monotonic() - began:.0f} s', done.stdout, sep='\n')
  if done.returncode:
    yield done.stderr


def judge(run: Islands, flags: list[str]) -> Iterator[str]:
  """Yields errors if undisturbed runs have other losses."""

  def loss(name):
    path = run.folder / name / 'summary.json'
    return json.loads(path.read_text())['validation_loss']

  def train(seed):
    more = *flags, f'--config.seed={seed}'
    command = disturbed.train_command(run.folder / f'seed{seed}', more)
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
  found = loss(run.names[0])
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


def tell(run: Islands) -> Iterator[str]:
  """Prints what the islands have done; yields errors."""
  began, ended = run.span
  trained = present(run, ended) - present(run, began)
  part = trained / (ended - began) / len(run.names)
  alive = trained / (trained + sum(run.returns))
  print(f'{part:.1%} of the islands took part')
  print(f'{alive:.1%} of those alive took part (goal 90%)')
  usual, longest = statistics.median(run.returns), max(run.returns)
  print(f'back after {usual:.1f} s (median) to {longest:.1f} s (goal 10 s)')
  for kind, pauses in run.pauses.items():
    more = [max(0.0, pause - 3 / run.rate) for pause in pauses]
    print(f'{kind}: {min(more):.1f} to {max(more):.1f} s longer (goal 5 s)')
  codes = {name: each.wait(1800) for name, each in run.running.items()}
  if any(codes.values()):
    yield f'exit codes {codes}'
    return
  yield from compare(run)


def present(run: Islands, until: float) -> float:
  """The total seconds in which islands have taken part until a time."""
  totals = journal.Totals()
  events = [event for event in run.events() if event.time < until]
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
    run = Restarted(*given) if options.restarts else Islands(*given)
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
