"""Turns metrics on the devices into the rows of a run.

Metrics are fetched a few steps late, so that the devices never wait for the
host.
"""

from collections.abc import Callable, Iterable
import time
from typing import Any

import jax
import numpy as np

from selsync_jax.config import RunError
from selsync_jax.devices import arrays
from selsync_jax.runs.ledger import Ledger
from selsync_jax.runs.ledger import Totals
from selsync_jax.training.setup import Setup

Row = dict[str, Any]
Scores = dict[str, float]


class Recorder:
  """Enters the metrics of every step into the ledger, and hands out its rows.

  Args:
    ledger: the run's ledger.
    workers: the number of workers of all processes.
    leaf_names: the names of the parameters, for replicas that differ.
    fetch: the number of steps whose metrics are fetched together.
    takers: functions that take each row.
  """

  def __init__(
    self,
    ledger: Ledger,
    workers: int,
    leaf_names: list[str],
    fetch: int,
    takers: Iterable[Callable[[Row], None]],
  ):
    self._ledger, self._names, self._takers = ledger, leaf_names, tuple(takers)
    self._workers, self._fetch = workers, fetch
    self._most = 1  # Pending steps; the first, which compiles, is alone.
    self._pending: list[Any] = []  # Metrics on the devices, oldest first.
    self._entered = False  # Whether any step of this session was.
    self._began = time.monotonic() - ledger.totals.seconds

  @property
  def totals(self) -> Totals:
    """The totals after the steps that were entered."""
    return self._ledger.totals

  def add(self, metrics: Any) -> None:
    """Queues a step, whose metrics may still be computed."""
    self._pending.append(metrics)

  def enter_ready(self) -> None:
    """Enters all but the newest step, if enough steps are pending.

    The newest one keeps the devices busy meanwhile.
    """
    if len(self._pending) > self._most:
      self._enter(len(self._pending) - 1)
      self._most = self._fetch

  def enter_all(self, score: Callable[[], Scores] = dict) -> Scores:
    """Enters all pending steps, the last one with its scores; returns these.

    Args:
      score: a function that scores the run; its time is not counted.
    """
    return self._enter(len(self._pending), score)

  def _enter(self, count, score=dict) -> Scores:
    if not count:
      return score()
    ready, self._pending = self._pending[:count], self._pending[count:]
    local = [jax.tree.map(arrays.local_values, metrics) for metrics in ready]
    steps = arrays.gather(
      jax.tree.map(lambda *x: np.stack(x), *local), self._workers
    )
    before, now = self.totals.seconds, time.monotonic() - self._began
    if not self._entered:
      now = before  # Exclude the step that compiles.
    self._entered = True
    scores = score()
    self._began = time.monotonic() - now  # Exclude the evaluation.
    for i in range(count):
      metrics = {name: values[i] for name, values in steps.items()}
      step = self.totals.steps + 1
      refuse_unequal(int(metrics['unequal'][0]), self._names, step)
      seconds = before + (now - before) * (i + 1) / count
      row = self._ledger.enter(metrics, seconds)
      for take in self._takers:
        take(row | scores if i == count - 1 else row)
    return scores


def create_ledger(
  setup: Setup, totals: Totals, kind: Callable[..., Ledger] = Ledger
) -> Ledger:
  """Returns the ledger of a run.

  Args:
    setup: the run.
    totals: the totals so far; the ledger updates them in place.
    kind: the ledger's constructor.
  """
  return kind(
    totals,
    setup.traffic,
    setup.problem.steps_per_epoch,
    setup.problem.rates,
    max_skips=setup.plan.max_skips,
  )


def refuse_unequal(leaf: int, names: list[str], step: int) -> None:
  """Raises `RunError` if replicas differ.

  Args:
    leaf: the index of the first leaf that differs, or -1.
    names: the names of the leaves.
    step: the step after which they were compared.
  """
  if leaf >= 0:
    raise RunError(
      f'step {step}: parameters that should be equal on all workers differ in '
      f'{names[leaf]}'
    )
