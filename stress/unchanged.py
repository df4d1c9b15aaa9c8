"""Does training give the same numbers as at an earlier commit?

  python -m stress.unchanged --base=HEAD~1
  python -m stress.unchanged --base=v0.1.0 --methods bsp selsync --seeds=1

Trains every method briefly, on the digits with both backends of the data and on
the smoke variant of stdlib_gpt, with this checkout and with one of the base
commit. Compares every row of `metrics.jsonl` and `workers.jsonl` except for
times, and every bit of the last checkpoint. Prints one table, with the steps
that synchronized, and then the differences; writes unchanged.json. The exit
code is 1 if anything differs. A method that only one of the commits has is
listed but not compared.

Both checkouts use this environment, so the base commit must run in it. They
share compiled programs, so equal programs are compiled once.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from absl import logging

from stress.every_method import WORKLOADS
from tests.support import live_runs

ROOT = live_runs.ROOT
DRIVER = pathlib.Path(__file__).with_name('every_method.py')
TIMES = ('seconds', 'samples_per_second', 'virtual_seconds')


def check_out(commit: str, folder: pathlib.Path) -> None:
  """Clones this repository at a commit."""
  subprocess.run(['git', 'clone', '--quiet', ROOT, folder], check=True)
  subprocess.run(
    ['git', 'checkout', '--quiet', '--detach', commit], cwd=folder, check=True
  )


def train(
  checkout: pathlib.Path, folder: pathlib.Path, options: dict[str, Any]
) -> None:
  """Trains all methods of a checkout, in one process."""
  cache = {
    'JAX_COMPILATION_CACHE_DIR': str(folder.parent / 'compiled'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  subprocess.run(
    [sys.executable, DRIVER, folder, json.dumps(options)],
    cwd=checkout,
    env=os.environ | cache | {'PYTHONPATH': str(checkout)},
    check=True,
  )


def rows(workdir: pathlib.Path, name: str) -> list[dict[str, Any]]:
  """The lines of a file of a run, without times."""
  path = workdir / name
  lines = path.read_text().splitlines() if path.exists() else []
  return [
    {key: x for key, x in json.loads(line).items() if key not in TIMES}
    for line in lines
  ]


def difference_of_rows(
  base: list[dict[str, Any]], new: list[dict[str, Any]]
) -> str | None:
  """The first field that differs, in words."""
  for old, row in zip(base, new, strict=False):
    for field in sorted(old.keys() | row.keys()):
      if old.get(field) != row.get(field):
        was, now = str(old.get(field))[:60], str(row.get(field))[:60]
        return f'step {old.get("step")}: {field} was {was}, is {now}'
  if len(base) != len(new):
    return f'{len(base)} rows became {len(new)}'
  return None


def arrays(workdir: pathlib.Path) -> dict[str, tuple[Any, ...]]:
  """Shape, dtype and bytes of every array of the last checkpoint, by name."""
  steps = [p.name for p in (workdir / 'checkpoints').glob('[0-9]*')]
  last = max((int(name) for name in steps if name.isdecimal()), default=None)
  if last is None:
    return {}
  return {
    name: (array.shape, str(array.dtype), array.tobytes())
    for name, array in live_runs.arrays(workdir, last)
  }


def difference_of_arrays(
  base: dict[str, tuple[Any, ...]], new: dict[str, tuple[Any, ...]]
) -> str | None:
  """The differences between two checkpoints, in words."""
  if base == new:
    return None
  lost, added = sorted(base.keys() - new.keys()), sorted(new.keys() - base)
  if lost or added:
    same = sorted(base.values()) == sorted(new.values())
    what = 'the same arrays have other names' if same else 'other arrays'
    return f'{what}: {", ".join(lost[:3])} became {", ".join(added[:3])}'
  names = [name for name, array in base.items() if array != new[name]]
  return f'{len(names)} of {len(base)} arrays differ: {", ".join(names[:3])}'


def error_of(workdir: pathlib.Path) -> str | None:
  """The reason for a run's failure, if it failed."""
  path = workdir / 'error'
  return path.read_text() if path.exists() else None


def compare(base: pathlib.Path, new: pathlib.Path) -> list[str]:
  """The differences between two runs, in words."""
  was, now = error_of(base), error_of(new)
  if was != now:
    return [f'ended with {was or "success"}, ends with {now or "success"}']
  found = {
    name: difference_of_rows(rows(base, name), rows(new, name))
    for name in ('metrics.jsonl', 'workers.jsonl')
  } | {'checkpoint': difference_of_arrays(arrays(base), arrays(new))}
  return [f'{name}: {text}' for name, text in found.items() if text]


def cell(base: pathlib.Path, new: pathlib.Path) -> tuple[str, list[str]]:
  """The table's row of a method and workload, and the differences.

  Args:
    base: a folder with a run for each seed.
    new: another such folder.
  """
  if not (base.exists() and new.exists()):
    return 'only here' if new.exists() else 'only base', []
  seeds = sorted(path.name for path in new.iterdir())
  found = [
    f'seed {seed}: {text}'
    for seed in seeds
    for text in compare(base / seed, new / seed)
  ]
  if found:
    return 'DIFFERS', found
  if error := error_of(new / seeds[0]):
    return 'refused', [error]
  counts = [
    sum(bool(row['synced']) for row in rows(new / seed, 'metrics.jsonl'))
    for seed in seeds
  ]
  return f'equal ({", ".join(map(str, counts))})', []


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--base', required=True, help='commit to compare with')
  parser.add_argument('--seeds', type=int, default=2)
  parser.add_argument('--steps', type=int, default=60, help='steps of each run')
  parser.add_argument('--methods', nargs='+', help='default: all')
  parser.add_argument(
    '--workloads', nargs='+', default=[*WORKLOADS], choices=WORKLOADS
  )
  parser.add_argument('--out', type=pathlib.Path, default='unchanged.json')
  options = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  asked = {
    name: getattr(options, name)
    for name in ('seeds', 'steps', 'methods', 'workloads')
  }
  with tempfile.TemporaryDirectory() as name:
    scratch = pathlib.Path(name)
    check_out(options.base, scratch / 'checkout')
    places = {'base': scratch / 'checkout', 'new': ROOT}
    with concurrent.futures.ThreadPoolExecutor() as pool:
      runs = [
        pool.submit(train, checkout, scratch / which, asked)
        for which, checkout in places.items()
      ]
      for run in runs:
        run.result()
    folders = [scratch / which for which in places]
    methods = sorted({p.name for f in folders for p in f.glob('*/*')})
    results = {
      method: {
        workload: cell(*(f / workload / method for f in folders))
        for workload in options.workloads
      }
      for method in methods
    }
  head = ''.join(f'{workload:24}' for workload in options.workloads)
  print(f'{"equal (synchronized)":24}{head}')
  for method, cells in results.items():
    print(f'{method:24}' + ''.join(f'{text:24}' for text, _ in cells.values()))
  for method, cells in results.items():
    for workload, (_, found) in cells.items():
      for text in found:
        print(f'{method}, {workload}: {text}')
  options.out.write_text(json.dumps(results, indent=2) + '\n')
  sys.exit(
    any(
      text == 'DIFFERS'
      for cells in results.values()
      for text, _ in cells.values()
    )
  )


if __name__ == '__main__':
  main()
