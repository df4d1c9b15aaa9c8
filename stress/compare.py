"""Kills compare, and checks the files that it leaves.

  python -m stress.compare --kills=20

Each case kills the command (SIGKILL) at a random moment. The processes that it
has started must then end by themselves. The same command must finish
afterwards, and every run must have the metrics and, bit for bit, the checkpoint
of an undisturbed run. Prints a line per case; the exit code is 1 if any case
was wrong.
"""

import argparse
import pathlib
import random
import shutil
import sys
import tempfile
import time

from tests.support import live_runs

PATIENCE = 60  # Seconds until the processes of a killed command have ended.


def command(folder: pathlib.Path) -> list[str]:
  """A command that trains two runs below a folder."""
  return [
    *(sys.executable, '-m', 'selsync_jax', 'compare'),
    f'--config={live_runs.ROOT}/configs/digits.py',
    *live_runs.FLAGS[1:],
    *('--methods=bsp,selsync', '--seeds=1', '--jobs=2', f'--out={folder}'),
  ]


def started_by(pid: int) -> list[int]:
  """Ids of the processes whose environment names a process as their parent."""
  found = []
  for process in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      variables = (process / 'environ').read_bytes().split(b'\0')
    except OSError:  # The process has ended.
      continue
    if f'SELSYNC_LAUNCHER={pid}'.encode() in variables:
      found.append(int(process.name))
  return found


def workdirs(folder: pathlib.Path) -> list[pathlib.Path]:
  """The runs below a folder, relative to it."""
  paths = folder.rglob('config.json')
  return sorted(path.parent.relative_to(folder) for path in paths)


def disturb(
  arguments: list[str], seconds: float, rng: random.Random
) -> tuple[str, list[str]]:
  """Kills a command within some seconds; returns when, and what was wrong."""
  child = live_runs.start(arguments)
  delay = rng.uniform(0, seconds)
  time.sleep(delay)
  child.kill()
  deadline = time.monotonic() + PATIENCE
  while (left := started_by(child.pid)) and time.monotonic() < deadline:
    time.sleep(0.1)
  found = [f'{len(left)} processes still run'] if left else []
  child.communicate(timeout=PATIENCE)
  return f'killed after {delay:4.1f} s', found


def finish(arguments: list[str]) -> list[str]:
  """Finishes a command that was killed; returns what was wrong."""
  done = live_runs.run(*arguments)
  if 'Traceback' in done.stderr:
    return ['a traceback']
  return [f'exit code {done.returncode}: {done.stderr}'] * bool(done.returncode)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--kills', type=int, default=20)
  parser.add_argument('--seed', type=int, default=0)
  options = parser.parse_args()
  wrong, rng = 0, random.Random(options.seed)
  with tempfile.TemporaryDirectory() as name:
    alone, start = pathlib.Path(name, 'alone'), time.monotonic()
    live_runs.finish(command(alone))
    seconds = time.monotonic() - start
    for number in range(options.kills):
      folder = pathlib.Path(name, str(number))
      folder.mkdir()
      arguments = command(folder)
      what, found = disturb(arguments, seconds, rng)
      found += finish(arguments)
      if workdirs(alone) != workdirs(folder):
        found.append('other runs')
      elif not found:
        for run in workdirs(alone):
          found += live_runs.differences(alone / run, folder / run)
      wrong += bool(found)
      print(f'{what}  {", ".join(found) or "equal"}', flush=True)
      shutil.rmtree(folder)
  print(f'{options.kills} kills, {wrong} of them wrong')
  sys.exit(bool(wrong))


if __name__ == '__main__':
  main()
