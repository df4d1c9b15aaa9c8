"""Runs of `train.py` in processes of their own: started, killed, compared."""

from collections.abc import Sequence
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

ROOT = pathlib.Path(__file__).parents[2]
LAUNCH = [sys.executable, '-m', 'selsync_jax', 'launch']
DIGITS = 'configs/digits.py'
STEPS = 80
COMPARED = ('synced', 'loss', 'samples', 'validation_loss', 'bytes_per_worker')
COMPARED += ('virtual_seconds',)
FLAGS = (
  '--noreport',
  '--config.data.backend=numpy',  # Processes start faster without TensorFlow.
  f'--config.steps={STEPS}',
  '--config.checkpoint.every=15',
  '--config.eval.every_epochs=4.0',
  '--config.log.fetch_every=3',
)


def command(
  method: str,
  processes: int,
  workdir: pathlib.Path,
  *flags: str,
  config: str = DIGITS,
) -> list[str]:
  """The command of a short run, of the digits with four workers."""
  run = [
    sys.executable,
    str(ROOT / 'train.py'),
    f'--config={ROOT}/{config}:{method}',
    f'--workdir={workdir}',
    *FLAGS,
    *flags,
  ]
  return (
    run if processes == 1 else [*LAUNCH, f'--processes={processes}', '--', *run]
  )


def simulation(
  method: str, workdir: pathlib.Path, config: str = DIGITS
) -> list[str]:
  """The command of the same run on a virtual cluster."""
  return [
    *(sys.executable, '-m', 'selsync_jax', 'simulate'),
    f'--config={ROOT}/{config}:{method}',
    f'--workdir={workdir}',
    *FLAGS,
    '--config.virtual_cluster.compute=delays',
    '--config.virtual_cluster.bandwidth=1Gbit',
  ]


def start(arguments: Sequence[str]) -> subprocess.Popen:
  """Starts a run in a process group of its own."""
  return subprocess.Popen(
    arguments,
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    start_new_session=True,
  )


def run(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
  """Runs a command to the end, in the project's folder.

  Args:
    *command: the program and its arguments.
    **options: see `subprocess.run`.
  """
  given = {'cwd': ROOT, 'timeout': 300} | options
  return subprocess.run(
    command, capture_output=True, text=True, check=False, **given
  )


def finish(arguments: Sequence[str]) -> str:
  """Runs to the end; returns what was printed.

  Raises:
    RuntimeError: if the exit code is not 0.
  """
  done = run(*arguments)
  if done.returncode:
    raise RuntimeError(
      f'exit code {done.returncode}: {done.stdout}{done.stderr}'
    )
  return done.stdout


def outcome(child: subprocess.Popen) -> tuple[int, list[str]]:
  """Waits for a child; returns its exit code and the lines it printed."""
  output, _ = child.communicate(timeout=300)
  return child.returncode, output.splitlines()


def free_port() -> int:
  """A port of this machine that is free now."""
  with socket.create_server(('localhost', 0)) as server:
    return server.getsockname()[1]


def trainers(child: subprocess.Popen) -> list[int]:
  """Ids of the processes that train: the child, or a launcher's children."""
  path = pathlib.Path(f'/proc/{child.pid}/task/{child.pid}/children')
  children = [int(pid) for pid in path.read_text().split()]
  return children if 'launch' in child.args else [child.pid]


def wait_for_rows(
  workdir: pathlib.Path, count: int, *children: subprocess.Popen
) -> None:
  """Returns when a run has logged `count` steps.

  Raises:
    RuntimeError: if a child ends before that, or no step is taken for two
      minutes.
  """
  deadline = time.monotonic() + 300
  while len(rows(workdir)) < count:
    for child in children:
      if child.poll() is not None:
        raise RuntimeError(f'ended too early: {child.communicate()[0]}')
    if time.monotonic() > deadline:
      raise RuntimeError(f'step {count} was not reached')
    time.sleep(0.02)


def kill_at(
  arguments: Sequence[str],
  workdir: pathlib.Path,
  step: int,
  delay: float,
  rng: random.Random,
) -> bool:
  """Kills one process of a run, `delay` seconds after a step was logged.

  Returns:
    Whether the run had not finished by then.
  """
  child = start(arguments)
  deadline = time.monotonic() + 300
  while len(rows(workdir)) < step and child.poll() is None:
    if time.monotonic() > deadline:
      raise RuntimeError(f'step {step} was not reached')
    time.sleep(0.02)
  time.sleep(delay)
  # A launcher whose processes have ended has no children left.
  if child.poll() is None and (alive := trainers(child)):
    os.kill(rng.choice(alive), signal.SIGKILL)
  child.communicate(timeout=300)
  return not (workdir / 'summary.json').exists()


def rows(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The complete lines of a run's metrics."""
  path = workdir / 'metrics.jsonl'
  text = path.read_text() if path.exists() else ''
  return [json.loads(line) for line in text.split('\n')[:-1]]


def contents(workdir: pathlib.Path) -> dict[pathlib.Path, bytes]:
  """The content of each file in a run's folder; its lock's may change."""
  files = (path for path in workdir.rglob('*') if path.is_file())
  return {path: path.read_bytes() for path in files if path.name != '.lock'}


def arrays(workdir: pathlib.Path, step: int) -> list[tuple[str, np.ndarray]]:
  """All arrays of the state in a checkpoint, with their names."""
  folder = workdir / 'checkpoints' / str(step) / 'state'
  with ocp.PyTreeCheckpointer() as checkpointer:
    metadata = checkpointer.metadata(folder).item_metadata.tree
    kind = ocp.RestoreArgs(restore_type=np.ndarray)
    tree = checkpointer.restore(
      folder, restore_args=jax.tree.map(lambda _: kind, metadata)
    )
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def differences(one: pathlib.Path, other: pathlib.Path) -> list[str]:
  """Names of arrays and metrics in which two finished runs differ.

  Both are runs of `command`; not a single bit may differ.
  """
  return [
    *differences_of_state(one, other),
    *differences_of_metrics(one, other),
    *differences_of_workers(one, other),
  ]


def differences_of_state(one: pathlib.Path, other: pathlib.Path) -> list[str]:
  """Names of arrays in which the last checkpoints of two runs differ."""
  states = zip(arrays(one, STEPS), arrays(other, STEPS), strict=True)
  return [
    name
    for (name, left), (_, right) in states
    if left.tobytes() != right.tobytes()
  ]


def differences_of_metrics(one: pathlib.Path, other: pathlib.Path) -> list[str]:
  """Metrics in which two finished runs differ."""
  found = []
  steps = [[row['step'] for row in rows(workdir)] for workdir in (one, other)]
  if steps != [list(range(1, STEPS + 1))] * 2:
    found.append('a missing or duplicate step in metrics.jsonl')
  for field in COMPARED:
    if [r.get(field) for r in rows(one)] != [r.get(field) for r in rows(other)]:
      found.append(field)
  return found


def differences_of_workers(one: pathlib.Path, other: pathlib.Path) -> list[str]:
  """The file of values per worker, if two finished runs differ in it."""
  name = 'workers.jsonl'
  same = (one / name).read_bytes() == (other / name).read_bytes()
  return [] if same else [name]


def go_back(workdir: pathlib.Path, step: int) -> None:
  """Takes a finished run back to a checkpoint, as if it had crashed there."""
  (workdir / 'summary.json').unlink()
  for path in (workdir / 'checkpoints').iterdir():
    if path.name.isdecimal() and int(path.name) > step:
      shutil.rmtree(path)
