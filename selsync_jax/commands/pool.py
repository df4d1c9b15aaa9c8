"""Runs trials of a comparison or a search, each in a process of its own."""

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from selsync_jax.cluster import children
from selsync_jax.cluster import signals
from selsync_jax.config import RunError
from selsync_jax.runs import workdir
from selsync_jax.runs.history import Trial
from selsync_jax.training import progress

STOPPED = 'stopped by a signal; the same command resumes the runs'
_REFRESH = 1.0  # Seconds between updates of the bar.


class TrialFailed(RunError):
  """An error that a trial was stopped, or failed but did not diverge."""

  def __init__(self, trial: Trial, reason: str, status: int):
    super().__init__(f'{trial.workdir}: {reason}')
    self.reason = reason
    self.code = status if status > 0 else 1  # A signal gives a negative one.


class Processes(contextlib.AbstractContextManager[Any]):
  """The processes that run trials; an error in the context ends them."""

  def __init__(self, jobs: int):
    self._environment = {
      # By default each process reserves three quarters of a GPU's memory.
      'XLA_PYTHON_CLIENT_MEM_FRACTION': f'{0.75 / jobs:.3f}',
      **os.environ,
      # Makes each process find the same modules as this one.
      'PYTHONPATH': os.pathsep.join(sys.path),
    }
    self._lock = threading.Lock()
    self._alive: set[subprocess.Popen] = set()
    self._stopped = False

  def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
    # The processes save their runs; a second signal would interrupt that.
    if kind is not None and not self._stopped:
      self.signal(signal.SIGTERM)

  def signal(self, number: int) -> bool:
    """Signals all processes and prevents new ones; returns if there are any."""
    with self._lock:
      self._stopped = True
      for process in self._alive:
        process.send_signal(number)
      return bool(self._alive)

  def run(
    self, trial: Trial, is_enough: Callable[[], bool] = lambda: False
  ) -> None:
    """Runs a trial, which leaves no summary if it diverges.

    It is stopped, and can resume, once it `is_enough`, which is asked every
    second. Raises `TrialFailed` if it failed otherwise than by diverging, or a
    signal prevented it.
    """
    trial.workdir.mkdir(parents=True, exist_ok=True)
    workdir.wait(trial.workdir)
    log = trial.workdir / f'{trial.command}.log'
    with log.open('w') as file:
      with self._lock:
        if self._stopped:
          raise TrialFailed(trial, STOPPED, signals.RESUMABLE)
        process = children.start(
          [
            *(sys.executable, '-m', 'selsync_jax', trial.command),
            *(*trial.flags, f'--workdir={trial.workdir}'),
          ],
          self._environment,
          stdout=file,
          stderr=subprocess.STDOUT,
        )
        self._alive.add(process)
      status = _wait(process, is_enough)
      with self._lock:
        self._alive.remove(process)
    lines = log.read_text(errors='replace').splitlines() or ['nothing']
    has_diverged = status == 1 and any(
      line.startswith(f'{trial.command}: step ') and 'is not finite' in line
      for line in lines
    )
    if status and not has_diverged:
      raise TrialFailed(trial, lines[-1], status)


def create_processes(jobs: int) -> Processes:
  """Returns processes that end before this one when a signal stops it."""
  processes = Processes(jobs)

  def react(number):
    if not processes.signal(number):  # Otherwise the trials save and end first.
      signals.stop(signals.RESUMABLE, STOPPED)

  signals.Handler(react).start()
  return processes


def _wait(process: subprocess.Popen, is_enough: Callable[[], bool]) -> int:
  """Returns the status of a process; 0 if it was stopped as it had enough."""
  while True:
    with contextlib.suppress(subprocess.TimeoutExpired):
      return process.wait(_REFRESH)
    if is_enough():
      process.terminate()
      process.wait()
      return 0


def run_all(
  trials: Sequence[Trial],
  jobs: int,
  processes: Processes,
  run: Callable[[Trial], None],
) -> None:
  """Calls `run` with each trial that is not finished; see `run_each`."""
  shares = [trial.share_done for trial in trials]
  queue = ((i, t) for i, t in enumerate(trials) if not t.is_done)
  run_each(queue, shares, jobs, processes, run)


def run_each(
  queue: Iterator[tuple[int, Trial]],
  shares: list[float],
  jobs: int,
  processes: Processes,
  run: Callable[[Trial], None],
) -> None:
  """Calls `run` with each trial of a queue, in `jobs` threads.

  The queue yields a trial and its index in `shares`, the share of every trial
  that is done; the next one is taken when a thread is free. The processes end
  if a trial fails. A bar, or a line for each trial, shows the running trials
  and an estimate of the remaining time.
  """
  count = len(shares)
  running: dict[futures.Future[None], tuple[int, Trial]] = {}
  with (
    futures.ThreadPoolExecutor(jobs) as threads,
    processes,
    progress.Bar(count, sum(shares)) as bar,
  ):
    while True:
      while len(running) < jobs and (found := next(queue, None)):
        index, trial = found
        if bar.disable:
          parts = [f'{index + 1}/{count}', bar.time_left, str(trial.workdir)]
          print(*filter(None, parts), sep='  ', flush=True)
        running[threads.submit(run, trial)] = found
      if not running:
        return
      ended, _ = futures.wait(running, _REFRESH, futures.FIRST_COMPLETED)
      for index, trial in running.values():
        shares[index] = trial.share_done
      for future in ended:
        shares[running.pop(future)[0]] = 1.0
        future.result()
      names = [f'{i + 1}/{count} {t.workdir}' for i, t in running.values()]
      bar.draw(sum(shares), names)
