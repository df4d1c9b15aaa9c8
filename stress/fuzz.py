"""Gives `train` random flags and config files, and checks how it answers.

  python -m stress.fuzz --seconds=300

Each case is a run of two steps in a process of its own, with hostile values for
one field or several, or with a hostile config file. It must end within --limit
seconds: as a run, or with one line. A refusal leaves no folder. Prints what did
otherwise, and writes fuzz.json. The exit code is 1 if anything did.

A refusal takes a second and a run several, so five minutes are about a hundred
cases; --seed gives others.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from tests.support import hostile_values
from tests.support import live_runs

MEMORY = 2**35  # Bytes of address space.
CACHE = {
  'JAX_PLATFORMS': 'cpu',
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
}
DIGITS = 'configs/digits.py'


def case(rng: random.Random, folder: pathlib.Path) -> list[str]:
  """The flags of a case."""
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
  flags: list[str], folder: pathlib.Path, limit: float
) -> tuple[int | None, str]:
  """The exit code of `train.py`, `None` if it hangs, and its errors."""
  cache = {'JAX_COMPILATION_CACHE_DIR': str(folder / 'compiled')}
  memory = (MEMORY, MEMORY)
  with (
    (folder / 'errors').open('w+') as errors,
    subprocess.Popen(
      [sys.executable, 'train.py', '--noreport', *flags],
      cwd=live_runs.ROOT,
      env=os.environ | CACHE | cache,
      stdout=subprocess.DEVNULL,
      stderr=errors,
      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, memory),
    ) as child,
  ):
    try:
      code = child.wait(limit)
    except subprocess.TimeoutExpired:
      child.kill()
      code = None
    errors.seek(0)
    return code, errors.read()


def fault(code: int | None, errors: str, workdir: pathlib.Path) -> str | None:
  """What is wrong with the end of a case, if anything."""
  if code is None:
    return 'hangs'
  if 'Traceback' in errors or code not in (0, 1, 2):
    return f'exit code {code}: {errors[-500:]}'
  if code and len(errors.splitlines()) != 1:
    return f'{len(errors.splitlines())} lines: {errors[-500:]}'
  if code == 2 and workdir.exists():
    return 'a refusal left a folder'
  return None


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--seconds', type=float, default=300)
  parser.add_argument('--limit', type=float, default=20, help='of a case, in s')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--out', default='fuzz.json')
  options = parser.parse_args()
  rng = random.Random(options.seed)
  end = time.monotonic() + options.seconds
  codes: collections.Counter[int | None] = collections.Counter()
  faults = []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    while time.monotonic() < end:
      workdir = folder / f'run{codes.total()}'
      flags = [*case(rng, folder), f'--workdir={workdir}']
      code, errors = run(flags, folder, options.limit)
      codes[code] += 1
      if wrong := fault(code, errors, workdir):
        faults.append({'flags': flags, 'fault': wrong})
        print(*flags, wrong, sep='\n  ', flush=True)
  counts = {str(code): count for code, count in sorted(codes.items(), key=str)}
  print(f'{codes.total()} cases, by exit code {counts}; {len(faults)} faults')
  result = {'cases': codes.total(), 'codes': counts, 'faults': faults}
  pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + '\n')
  sys.exit(bool(faults))


if __name__ == '__main__':
  main()
