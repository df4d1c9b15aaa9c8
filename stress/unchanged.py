"""Does training give the same numbers as at an earlier commit?

  python -m stress.unchanged --base=HEAD~1

Trains every method and several variants briefly, with this checkout and with
one of the base commit, and compares every row of `metrics.jsonl` except for
times. Prints one table and writes unchanged.json. The exit code is 1 if a row
differs. Both checkouts use this environment, so the base commit must run in it.
"""

import argparse
from collections.abc import Iterator
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
TIMES = ('seconds', 'samples_per_second')
DIGITS = ('--config=configs/digits.py:{}', '--config.steps=100')
RUNS = {
  name: [DIGITS[0].format(name), DIGITS[1]]
  for name in ('selsync', 'bsp', 'local_sgd', 'fedavg', 'diloco')
} | {
  f'selsync, {field}': [
    DIGITS[0].format('selsync'),
    DIGITS[1],
    f'--config.sync.{field}',
  ]
  for field in (
    'lag=1',
    'vote_every=3',
    'quorum=0.5',
    'aggregate=grads',
    'max_period=6',
  )
}
RUNS |= {
  'fedavg, fraction=0.5': [*RUNS['fedavg'], '--config.sync.fraction=0.5'],
  'diloco, period=10': [*RUNS['diloco'], '--config.sync.period=10'],
  'selsync, injection': [
    '--config=configs/digits_noniid.py:selsync',
    '--config.steps=40',
    '--config.data.injection.alpha=0.5',
    '--config.data.injection.beta=0.5',
  ],
  'selsync, language model': [
    '--config=configs/stdlib_gpt.py:selsync,smoke',
    '--config.steps=40',
  ],
}


def rows(
  checkout: pathlib.Path, flags: list[str], workdir: pathlib.Path
) -> list[dict[str, Any]]:
  """The rows of a run that a checkout trains, without their times."""
  subprocess.run(
    [sys.executable, 'train.py', *flags, f'--workdir={workdir}', '--noreport'],
    cwd=checkout,
    check=True,
    capture_output=True,
  )
  metrics, workers = (
    (workdir / name).read_text().splitlines()
    for name in ('metrics.jsonl', 'workers.jsonl')
  )
  return [
    {
      name: value
      for line in lines
      for name, value in json.loads(line).items()
      if name not in TIMES
    }
    for lines in zip(metrics, workers, strict=True)
  ]


def differences(
  base: list[dict[str, Any]], new: list[dict[str, Any]]
) -> Iterator[str]:
  """Every field of every step that differs, in words."""
  if len(base) != len(new):
    yield f'{len(base)} rows became {len(new)}'
  for old, row in zip(base, new, strict=False):
    for field in sorted(old.keys() | row.keys()):
      if old.get(field) != row.get(field):
        yield (
          f'step {old["step"]}: {field} was {old.get(field)!r}, '
          f'is {row.get(field)!r}'
        )


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--base', required=True, help='commit to compare with')
  parser.add_argument('--only', nargs='+', choices=RUNS, help='of the runs')
  parser.add_argument('--out', default='unchanged.json')
  options = parser.parse_args()
  found: dict[str, list[str]] = {}
  with tempfile.TemporaryDirectory() as folder:
    scratch = pathlib.Path(folder)
    subprocess.run(
      ['git', 'clone', '--quiet', ROOT, scratch / 'base'], check=True
    )
    subprocess.run(
      ['git', 'checkout', '--quiet', options.base],
      cwd=scratch / 'base',
      check=True,
    )
    for i, name in enumerate(options.only or RUNS):
      base, new = (
        rows(checkout, RUNS[name], scratch / f'{which}-{i}')
        for which, checkout in (('base', scratch / 'base'), ('new', ROOT))
      )
      found[name] = list(differences(base, new))
      verdict = found[name][0] if found[name] else 'equal'
      print(f'{name:24}  {len(new):4} rows  {verdict}', flush=True)
  pathlib.Path(options.out).write_text(json.dumps(found, indent=2) + '\n')
  sys.exit(any(found.values()))


if __name__ == '__main__':
  main()
