"""Gives `train` random flags and config files, and checks the outcome.

  python -m stress.fuzz --cases=100
  python -m stress.fuzz --cases=500 --code

Each case is a run of a few steps in its own process, with hostile values for
one or several fields, or with a hostile config file. With --code, the config
file's data, model, task, method or writer raises or returns something wrong at
one of its calls. The case must end within --limit seconds, in a run or in a
one-line error. A refusal leaves no folder. A run that ended because of its
custom code must resume once the code is right. Prints the cases that did
otherwise, and writes fuzz.json. The exit code is 1 if there are any.

A case takes three to twenty seconds; other values of --seed give other cases.
"""

import argparse
import collections
from collections.abc import Callable, Sequence
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile

from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from stress import hostile_code
from tests.support import hostile_values, live_runs

MEMORY = 2**35  # Bytes of address space.
CACHE = {
  'JAX_PLATFORMS': 'cpu',
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
}
DIGITS = 'configs/digits.py'


def hostile_flags(rng: random.Random, folder: pathlib.Path) -> list[str]:
  """Flags with hostile values, or for a hostile config file."""
  if rng.random() < 0.1:
    text, _ = rng.choice(list(hostile_values.FILES.values()))
    file = folder / 'config.py'
    file.write_text(text)
    return [f'--config={file}']
  method = rng.choice(['selsync', 'bsp', 'fedavg', 'diloco'])
  file = f'{DIGITS}:{method}'
  flags = hostile_values.several_fields(file, rng)
  wants_run = rng.random() < 0.5  # Most random values are refused.
  while wants_run and not _accepts(file, flags):
    flags = hostile_values.several_fields(file, rng)
  return [f'--config={file}', *hostile_values.QUICK, *flags]


def _accepts(file: str, flags: list[str]) -> bool:
  try:
    config_file.load(file, [*hostile_values.QUICK, *flags])
  except ConfigError:
    return False
  return True


def run(
  flags: Sequence[str], folder: pathlib.Path, limit: float, **env: str
) -> tuple[int | None, str]:
  """The exit code of `train.py`, `None` if it hangs, and its errors."""
  cache = {'JAX_COMPILATION_CACHE_DIR': str(folder / 'compiled')}
  with (
    (folder / 'errors').open('w+') as errors,
    subprocess.Popen(
      [sys.executable, 'train.py', '--noreport', *flags],
      cwd=live_runs.ROOT,
      env=cache | os.environ | CACHE | env,
      stdout=subprocess.DEVNULL,
      stderr=errors,
    ) as child,
  ):
    resource.prlimit(child.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
      code = child.wait(limit)
    except subprocess.TimeoutExpired:
      child.kill()
      code = None
    errors.seek(0)
    return code, errors.read()


def fault(code: int | None, errors: str, workdir: pathlib.Path) -> str | None:
  """Describes a wrong end of a case; `None` if the end is right."""
  if code is None:
    return 'hangs'
  if 'Traceback' in errors or code not in (0, 1, 2):
    return f'exit code {code}: {errors[-500:]}'
  if code and len(errors.splitlines()) != 1:
    return f'{len(errors.splitlines())} lines: {errors[-500:]}'
  if code == 2 and workdir.exists():
    return f'a refusal left a folder: {errors}'
  return None


def fault_of_code(
  case: hostile_code.Case,
  flags: Sequence[str],
  folder: pathlib.Path,
  workdir: pathlib.Path,
  limit: float,
  run: Callable[..., tuple[int | None, str]] = run,
) -> tuple[int | None, str | None]:
  """The exit code of a run whose custom code misbehaves, and its fault."""
  mark = folder / 'reached'
  mark.unlink(missing_ok=True)
  code, errors = run(flags, folder, limit, REACHED=str(mark))
  if wrong := fault(code, errors, workdir):
    return code, wrong
  if code == 0 and case.raises and mark.exists() and not case.is_forgiven:
    return code, f'continued: {errors}'
  if code and case.raises:
    again, errors = run(flags, folder, limit, HARMLESS='1')
    rows = len(live_runs.rows(workdir))
    if again or rows != hostile_code.STEPS:
      return code, f'cannot resume: exit code {again}, {rows} rows; {errors}'
  return code, None


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--cases', type=int, default=100)
  parser.add_argument('--code', action='store_true', help='hostile custom code')
  parser.add_argument(
    '--limit', type=float, default=60, help='seconds per case'
  )
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--out', default='fuzz.json')
  options = parser.parse_args()
  rng = random.Random(options.seed)
  codes: collections.Counter[int | None] = collections.Counter()
  faults = []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for i in range(options.cases):
      workdir = folder / f'run{i}'
      about = [f'--workdir={workdir}']
      if options.code:
        case = hostile_code.draw(rng)
        file = folder / 'config.py'
        case.write(file)
        flags = [f'--config={file}', *about]
        about = [repr(case)]
        code, wrong = fault_of_code(case, flags, folder, workdir, options.limit)
      else:
        flags = about = [*hostile_flags(rng, folder), *about]
        code, errors = run(flags, folder, options.limit)
        wrong = fault(code, errors, workdir)
      codes[code] += 1
      if wrong:
        faults.append({'case': about, 'fault': wrong})
        print(*about, wrong, sep='\n  ', flush=True)
  counts = {str(code): count for code, count in sorted(codes.items(), key=str)}
  print(f'{codes.total()} cases, by exit code {counts}; {len(faults)} faults')
  result = {'cases': codes.total(), 'codes': counts, 'faults': faults}
  pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + '\n')
  sys.exit(bool(faults))


if __name__ == '__main__':
  main()
