"""Time from a command to its first visible result.

  python -m benchmarks.speed.start

Prints the seconds of `selsync --help` and of a warm start: from the command to
the first step of the digits, after an earlier run compiled the same programs.
The goals are 1 and 6 seconds on two quiet cores. Also prints the seconds of a
whole run of one step, alone and within a comparison, whose runs share imports;
and the import time of a start by package, counted by `python -X importtime`.
Writes one JSON file.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from benchmarks.table import report, Table
from selsync_jax.commands import pool, trials

GOALS = {'--help': 1, 'first step': 6}
COMMAND = [sys.executable, '-m', 'selsync_jax']
_IMPORT = re.compile(r'import time:\s+(\d+) \|\s+\d+ \|\s+(\w+)')


def help_seconds() -> float:
  """The seconds of `--help`; its exit code is 0."""
  began = time.perf_counter()
  subprocess.run([*COMMAND, '--help'], check=True, stdout=subprocess.DEVNULL)
  return time.perf_counter() - began


def start_seconds(flags: list[str]) -> float:
  """The seconds until a run has logged its first step."""
  with tempfile.TemporaryDirectory() as folder:
    rows = pathlib.Path(folder, 'metrics.jsonl')
    command = [*COMMAND, 'train', f'--workdir={folder}', '--noreport']
    began = time.perf_counter()
    with subprocess.Popen(
      [*command, '--config.steps=1', *flags], stdout=subprocess.DEVNULL
    ) as process:
      while not (rows.exists() and rows.stat().st_size):
        if process.poll():
          raise RuntimeError(f'exit code {process.returncode}')
        time.sleep(0.01)
      return time.perf_counter() - began


def whole_seconds(flags: list[str]) -> float:
  """The seconds of a run of one step, with its report."""
  with tempfile.TemporaryDirectory() as folder:
    began = time.perf_counter()
    subprocess.run(
      [*COMMAND, 'train', f'--workdir={folder}', '--config.steps=1', *flags],
      check=True,
      stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def compared_seconds(flags: list[str], count: int) -> list[float]:
  """The seconds of a comparison's runs, except the first, which imports."""
  seconds = []
  with tempfile.TemporaryDirectory() as folder, pool.Processes(1) as processes:
    for trial in trials.list_trials(
      'digits',
      ['--config.steps=1', *flags],
      ['selsync'],
      pathlib.Path(folder),
      learning_rates=[lambda rate: rate],
      seeds=count + 1,
    ):
      began = time.perf_counter()
      processes.run(trial)
      seconds.append(time.perf_counter() - began)
  return seconds[1:]


def imports(flags: list[str]) -> dict[str, float]:
  """Seconds of imports during a run, by package, the longest first."""
  with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(
      [
        *(sys.executable, '-X', 'importtime', *COMMAND[1:], 'train'),
        *(f'--workdir={folder}', '--noreport', '--config.steps=1', *flags),
      ],
      check=True,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
    )
  totals: collections.Counter[str] = collections.Counter()
  for line in done.stderr.splitlines():
    if match := _IMPORT.match(line):
      totals[match[2]] += int(match[1])
  return {name: 1e-6 * micros for name, micros in totals.most_common()}


def main(argv: list[str] | None = None) -> None:
  """The command line; other flags are passed to `train`."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=3, help='the best counts')
  parser.add_argument('--out', type=pathlib.Path, default='start.json')
  options, flags = parser.parse_known_args(argv)
  rounds = range(options.rounds)
  start_seconds(flags)  # Compiles.
  seconds = {
    '--help': min(help_seconds() for _ in rounds),
    'first step': min(start_seconds(flags) for _ in rounds),
    'a run of one step': min(whole_seconds(flags) for _ in rounds),
    'the same, compared': min(compared_seconds(flags, options.rounds)),
  }
  budget = imports(flags)
  table = Table(
    ('', 'seconds', 'goal'),
    [
      *(
        [name, f'{s:.2f}', f'{GOALS.get(name, "")}']
        for name, s in seconds.items()
      ),
      ['imports, of these:', f'{sum(budget.values()):.2f}', ''],
      *([f'  {n}', f'{s:.2f}', ''] for n, s in list(budget.items())[:12]),
    ],
  )
  report(options.out, {'seconds': seconds, 'imports': budget}, table)


if __name__ == '__main__':
  main()
