"""Runs trials of a comparison or a search, each in a process of its own.

The processes of a job share what they import: see `forks.py`.
"""

from collections.abc import Callable, Sequence
from concurrent import futures
import contextlib
import os
import pathlib
import signal
import sys
import threading
from typing import Any

from selsync_jax.cluster import signals
from selsync_jax.commands.forks import Forks
from selsync_jax.config import RunError
from selsync_jax.data import opening
from selsync_jax.runs import files, workdir
from selsync_jax.runs.history import Trial
from selsync_jax.training import progress

STOPPED = 'stopped by a signal; the same command resumes the runs'
_REFRESH = 1.0  # Seconds between updates of the bar.
_MODULES = 'selsync_jax.training.train', 'selsync_jax.report.run_page'


class TrialFailed(RunError):
  """A trial was stopped, or failed other than by diverging."""

  def __init__(self, trial: Trial, reason: str, status: int):
    super().__init__(f'{trial.workdir}: {reason}')
    self.reason = reason
    self.code = status if status > 0 else 1  # A signal gives a negative one.


class Processes(contextlib.AbstractContextManager[Any]):
  """The processes that run trials; an error in the context ends them.

  Args:
    jobs: the number of trials at a time.
  """

  def __init__(self, jobs: int):
    self._jobs = jobs
    self._environment = {
      # By default each process reserves three quarters of a GPU's memory.
      'XLA_PYTHON_CLIENT_MEM_FRACTION': f'{0.75 / jobs:.3f}',
      **os.environ,
      # Makes each process find the same modules as this one.
      'PYTHONPATH': os.pathsep.join(sys.path),
    }
    self._lock = threading.Lock()
    self._idle: list[Forks] = []
    self._alive: set[Forks] = set()
    self._stopped = False

  def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
    # The processes save their runs; a second signal would interrupt that.
    if kind is not None and not self._stopped:
      self.signal(signal.SIGTERM)
    while self._idle:
      self._idle.pop().close()

  def signal(self, number: int) -> bool:
    """Signals all processes and prevents new ones; returns if any are alive."""
    with self._lock:
      self._stopped = True
      for forks in tuple(self._alive):
        forks.signal(number)
      return bool(self._alive)

  def run(
    self, trial: Trial, is_enough: Callable[[], bool] = lambda: False
  ) -> None:
    """Runs a trial, which leaves no summary if it diverges.

    The trial is stopped, and can resume later, once `is_enough` returns true;
    the function is called every second. Raises `TrialFailed` if the trial fails
    other than by diverging, or a signal stops it.
    """
    trial.workdir.mkdir(parents=True, exist_ok=True)
    workdir.wait(trial.workdir)
    log = trial.workdir / f'{trial.command}.log'
    log.write_text('')
    status = self._run(trial, log, is_enough)
    lines = log.read_text(errors='replace').splitlines() or ['nothing']
    has_diverged = status == 1 and any(
      line.startswith(f'{trial.command}: step ') and 'is not finite' in line
      for line in lines
    )
    if status and not has_diverged:
      raise TrialFailed(trial, lines[-1], status)

  def _run(
    self, trial: Trial, log: pathlib.Path, is_enough: Callable[[], bool]
  ) -> int:
    """Runs a trial to its end; returns its status, or 0 if `is_enough`."""
    if self._stopped:
      raise TrialFailed(trial, STOPPED, signals.RESUMABLE)
    command = [trial.command, *trial.flags, f'--workdir={trial.workdir}']
    with self._lock:
      idle = self._idle.pop() if self._idle else None
    forks = idle or self._create(trial, log)
    with contextlib.ExitStack() as stack:
      stack.callback(forks.close)
      forks.start(command, log)
      stack.callback(self._alive.discard, forks)
      with self._lock:
        self._alive.add(forks)
        if self._stopped:  # Meanwhile.
          forks.signal(signal.SIGTERM)
      status = _wait(forks, is_enough)
      if not self._stopped:
        stack.pop_all()
        self._alive.discard(forks)
        self._idle.append(forks)
    as_it_began = signals.STOPPED, *(-number for number in signals.NUMBERS)
    if self._stopped and status in as_it_began:
      raise TrialFailed(trial, STOPPED, signals.RESUMABLE)
    return status

  def _create(self, trial: Trial, log: pathlib.Path) -> Forks:
    data = trial.config.data
    own = opening.late_imports(data.name, data.backend)
    return Forks([*_MODULES, *own], self._environment, log)

  def run_all(
    self, trials: Sequence[Trial], run: Callable[[Trial], None] | None = None
  ) -> None:
    """Calls `run` with each unfinished trial, in as many threads as jobs.

    Runs that other code has trained are moved aside first. The processes end if
    a trial fails. A bar, or a line for each trial, shows the running trials and
    an estimate of the remaining time.
    """
    for trial in trials:
      if changes := trial.changes:
        workdir.wait(trial.workdir)
        aside = files.move_aside(trial.workdir, trial.workdir)
        print(
          f'{trial.workdir}: {"; ".join(changes)}; the run is repeated, and '
          f'the old run is in {aside}'
        )
    count, shares = len(trials), [trial.share_done for trial in trials]
    queue = [(i, trial) for i, trial in enumerate(trials) if not trial.is_done]
    running: dict[futures.Future[None], tuple[int, Trial]] = {}
    with (
      futures.ThreadPoolExecutor(self._jobs) as threads,
      self,
      progress.Bar(count, sum(shares)) as bar,
    ):
      while queue or running:
        while queue and len(running) < self._jobs:
          index, trial = found = queue.pop(0)
          if bar.disable:
            parts = [f'{index + 1}/{count}', bar.time_left, str(trial.workdir)]
            print(*filter(None, parts), sep='  ', flush=True)
          running[threads.submit(run or self.run, trial)] = found
        ended, _ = futures.wait(running, _REFRESH, futures.FIRST_COMPLETED)
        for index, trial in running.values():
          shares[index] = trial.share_done
        for future in ended:
          index, trial = running.pop(future)
          shares[index] = 1.0
          future.result()
          if changes := trial.changes:  # Since this process read the code.
            raise RunError(
              f'{trial.workdir}: {"; ".join(changes)}, while runs were '
              'trained; repeat the command to retrain the runs that used the '
              'old code'
            )
        names = [f'{i + 1}/{count} {t.workdir}' for i, t in running.values()]
        bar.draw(sum(shares), names)


def create_processes(jobs: int) -> Processes:
  """Returns processes that end before this one when a signal stops it."""
  processes = Processes(jobs)

  def react(number):
    if not processes.signal(number):  # Otherwise the trials save and end first.
      signals.stop(signals.RESUMABLE, STOPPED)

  signals.Handler(react).start()
  return processes


def _wait(forks: Forks, is_enough: Callable[[], bool]) -> int:
  """Returns the status of a command; 0 if `is_enough` stopped it."""
  while (status := forks.wait(_REFRESH)) is None:
    if is_enough():
      forks.signal(signal.SIGTERM)
      while forks.wait(_REFRESH) is None:
        pass
      return 0
  return status
