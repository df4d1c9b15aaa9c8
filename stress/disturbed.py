"""Training on emulated hosts, which `stress.storm` disturbs."""

import abc
import collections
from collections.abc import Callable, Sequence
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any

from selsync_jax.islands import journal
from tests.support import emulated, live_runs

PAUSE = 0.25  # Seconds of a step in which the CPU is idle.
TIMEOUT = 1.0  # Seconds until a silent island is given up.
PATIENCE = 120.0  # Seconds within which a victim must train again.
MEETING = 10.0  # Seconds in which the processes of one run must meet.
# Steps from one checkpoint of the reference to the next. A save takes some
# 0.1 s, so every sqrt(2 x 0.1 s x 45 s) = 3 s is best (Young 1974).
SAVES = 12
CONFIG = 'tests/support/slow_digits.py'


class Training(abc.ABC):
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

  @abc.abstractmethod
  def begin(self, name: str) -> subprocess.Popen:
    """Starts a process."""

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


class Islands(Training):
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
