"""Metrics of steps, fetched from the devices a few steps late.

The delay keeps the devices from waiting for the host.
"""

from collections.abc import Callable, Iterable
import time
from typing import Any

import jax
import numpy as np

from selsync_jax.devices import arrays
from selsync_jax.runs.ledger import Ledger, Totals
from selsync_jax.runs.records import Row

Scores = dict[str, float]


class Fetcher:
  """Enters the metrics of every step into the ledger; `takers` take its rows.

  The metrics of `fetch` steps are fetched together; `gather` adds the metrics
  of the other programs' workers.
  """

  def __init__(
    self,
    ledger: Ledger,
    gather: Callable[[Any], Any],
    fetch: int,
    takers: Iterable[Callable[[Row], None]],
  ):
    self.totals: Totals = ledger.totals
    self._ledger, self._takers = ledger, tuple(takers)
    self._gather, self._fetch = gather, fetch
    self._most = 1  # Pending steps; the first, which compiles, is alone.
    self._pending: list[Any] = []  # Metrics on the devices, oldest first.
    self._entered = False  # Whether any step was, in this session.
    self._began = time.monotonic() - ledger.totals.seconds

  def begin_again(self) -> None:
    """Fetches the next step alone and without timing it, like the first."""
    self._most, self._entered = 1, False

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
    """Enters all pending steps, the last with its scores; returns the scores.

    The time of `score` is not counted.
    """
    return self._enter(len(self._pending), score)

  def _enter(self, count, score=dict) -> Scores:
    if not count:
      return score()
    ready, self._pending = self._pending[:count], self._pending[count:]
    local = [jax.tree.map(arrays.local_values, metrics) for metrics in ready]
    steps = self._gather(jax.tree.map(lambda *x: np.stack(x), *local))
    before, now = self.totals.seconds, time.monotonic() - self._began
    if not self._entered:
      now = before  # Exclude the step that compiles.
    self._entered = True
    scores = score()
    self._began = time.monotonic() - now  # Exclude the evaluation.
    for i in range(count):
      metrics = {name: values[i] for name, values in steps.items()}
      seconds = before + (now - before) * (i + 1) / count
      row = self._ledger.enter(metrics, seconds)
      for take in self._takers:
        take(row | scores if i == count - 1 else row)
    return scores
