"""Runs the trials of a comparison, each in a process of its own."""

from collections.abc import Callable, Sequence
from concurrent import futures
import os
import signal
import subprocess
import sys
import threading

from selsync_jax.cluster import signals
from selsync_jax.config import RunError
from selsync_jax.runs.trial import Trial
from selsync_jax.training import progress

STOPPED = 'stopped by a signal; the same command continues the comparison'
_REFRESH = 1.0  # Seconds from one look at the running trials to the next.


class TrialFailed(RunError):
  """A trial failed otherwise than by diverging, or was stopped."""

  def __init__(self, trial: Trial, reason: str, status: int):
    super().__init__(f'{trial.workdir}: {reason}')
    self.code = status if status > 0 else 1  # Negative: a signal killed it.


class Processes:
  """The processes that run trials; an error in the context ends them.

  Args:
    jobs: how many run at a time, at most.
  """

  def __init__(self, jobs: int):
    self._environment = {
      # Each would reserve three quarters of a GPU's memory.
      'XLA_PYTHON_CLIENT_MEM_FRACTION': f'{0.75 / jobs:.3f}',
      **os.environ,
      # The same modules as here, wherever this process found them.
      'PYTHONPATH': os.pathsep.join(sys.path),
    }
    self._lock = threading.Lock()
    self._alive: set[subprocess.Popen] = set()
    self._stopped = False

  def __enter__(self) -> 'Processes':
    return self

  def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
    if kind is not None and not self._stopped:  # A second signal ends a save.
      self.signal(signal.SIGTERM)  # They save their runs.

  def signal(self, number: int) -> bool:
    """Sends a signal to all of them, and lets no others begin.

    Returns:
      Whether there are any.
    """
    with self._lock:
      self._stopped = True
      for process in self._alive:
        process.send_signal(number)
      return bool(self._alive)

  def run(self, trial: Trial) -> None:
    """Runs a trial; if it diverges there is no summary.

    Raises:
      TrialFailed: if it failed otherwise, or a signal let none begin.
    """
    trial.workdir.mkdir(parents=True, exist_ok=True)
    log = trial.workdir / f'{trial.command}.log'
    with log.open('w') as file:
      with self._lock:
        if self._stopped:
          raise TrialFailed(trial, STOPPED, signals.RESUMABLE)
        process = subprocess.Popen(
          [
            *(sys.executable, '-m', 'selsync_jax', trial.command),
            *(*trial.flags, f'--workdir={trial.workdir}'),
          ],
          env=self._environment,
          stdout=file,
          stderr=subprocess.STDOUT,
          # Ctrl-C in the terminal does not reach it twice.
          start_new_session=True,
        )
        self._alive.add(process)
      status = process.wait()
      with self._lock:
        self._alive.remove(process)
    lines = log.read_text().splitlines() or ['nothing']
    if status and not (status == 1 and _has_diverged(trial, lines)):
      raise TrialFailed(trial, lines[-1], status)


def _has_diverged(trial: Trial, lines: Sequence[str]) -> bool:
  """Whether a trial's log says so; a library may print more lines after it."""
  return any(
    line.startswith(f'{trial.command}: step ') and 'is not finite' in line
    for line in lines
  )


def run_all(
  trials: Sequence[Trial],
  jobs: int,
  processes: Processes,
  run: Callable[[Trial], None],
) -> None:
  """Runs the trials that are not finished, `jobs` at a time.

  A bar, or a line for each trial, says which of them run, and an estimate of
  the time for all.

  Args:
    trials: of the comparison.
    jobs: how many to run at a time.
    processes: of the trials; they end if one of the trials fails.
    run: runs a trial; called in a thread.
  """
  count, shares = len(trials), [trial.share_done for trial in trials]
  waiting = [i for i, trial in enumerate(trials) if not trial.is_done]
  running: dict[futures.Future[None], int] = {}
  with (
    futures.ThreadPoolExecutor(jobs) as threads,
    processes,
    progress.Bar(count, sum(shares)) as bar,
  ):
    while waiting or running:
      while waiting and len(running) < jobs:
        index = waiting.pop(0)
        trial = trials[index]
        if bar.disable:
          parts = [f'{index + 1}/{count}', bar.time_left, str(trial.workdir)]
          print(*filter(None, parts), sep='  ', flush=True)
        running[threads.submit(run, trial)] = index
      ended, _ = futures.wait(running, _REFRESH, futures.FIRST_COMPLETED)
      for index in running.values():
        shares[index] = trials[index].share_done
      for future in ended:
        shares[running.pop(future)] = 1.0
        future.result()
      names = [f'{i + 1}/{count} {trials[i].workdir}' for i in running.values()]
      bar.show(sum(shares), names)
