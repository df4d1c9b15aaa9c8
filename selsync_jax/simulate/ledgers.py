"""The ledgers of simulated runs: columns and totals of virtual time."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selsync_jax.runs.ledger import Ledger, NonFiniteError, Totals
from selsync_jax.simulate.engine import Engine
from selsync_jax.simulate.simulation import Span, Use
from selsync_jax.sync.traffic import traffic
from selsync_jax.training.problem import Problem

TIMELINE = 64  # The number of first steps whose spans are recorded.


class VirtualLedger(Ledger):
  """A ledger with virtual time.

  `Totals.clock` keeps the virtual `seconds`, the seconds that workers have
  `waited` on average, and the number and the total `staleness` of `gradients`.
  """

  def tick(
    self,
    seconds: float,
    staleness: Sequence[int],
    versions: Sequence[int],
    spans: Sequence[Span],
  ) -> dict[str, Any]:
    """Enters the step that was counted last, which ended at `seconds`.

    The arguments are the staleness of each gradient, the version of each
    worker's model, and the spans since the step before. The result is columns
    of the step's row, see docs/stragglers.md.
    """
    waited = [0.0] * len(versions)
    for span in spans:
      if span.kind == 'wait':
        waited[span.worker] += span.ended - span.began
    clock = self.totals.clock
    clock['seconds'] = seconds
    clock['waited'] = clock.get('waited', 0.0) + float(np.mean(waited))
    clock['gradients'] = clock.get('gradients', 0) + len(staleness)
    clock['staleness'] = clock.get('staleness', 0) + sum(staleness)
    timeline = self.totals.steps <= TIMELINE
    return {
      'virtual_seconds': seconds,
      'staleness': list(staleness),
      'version': list(versions),
      'waited': waited,
      **({'spans': list(spans)} if timeline else {}),
    }

  def summary(self) -> dict[str, Any]:
    clock = self.totals.clock
    return super().summary() | {
      'virtual_seconds': clock['seconds'],
      'waited': clock['waited'],
      'staleness': clock['staleness'] / clock['gradients'],
    }


class AsynchronousLedger(VirtualLedger):
  """A ledger of steps whose gradients reach the model one by one."""

  def __init__(self, totals: Totals, problem: Problem, workers: int):
    sent = traffic((), problem.shapes['params'], workers)
    super().__init__(
      totals,
      sent._replace(injected=problem.data.injected_bytes_per_step),
      problem.steps_per_epoch,
      problem.rates,
      problem.max_skips,
    )
    # By step: gradients, versions of the workers' models, and spans.
    self._expected: collections.deque[
      tuple[list[Use], list[int], list[Span]]
    ] = collections.deque()

  def expect(self, uses: list[Use], engine: Engine) -> None:
    """Queues a step, which `count` will count after the ones before it."""
    versions = list(engine.sim.versions)
    self._expected.append((uses, versions, engine.spans()))

  def count(self, metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    totals, (uses, versions, spans) = self.totals, self._expected.popleft()
    bad = np.flatnonzero(~np.isfinite(metrics['loss']))
    if bad.size:
      worker = uses[bad[0]].worker
      raise NonFiniteError(
        f'step {totals.steps + 1}: the loss of worker {worker} is not finite'
      )
    totals.steps += 1
    totals.injected += self.traffic.injected
    totals.sent = uses[-1].sent / len(versions) + totals.injected
    totals.sent_bsp += self.traffic.bsp
    staleness = [use.staleness for use in uses]
    return self.tick(uses[-1].seconds, staleness, versions, spans)

  def summary(self) -> dict[str, Any]:
    lockstep = ('sync_steps', 'local_steps', 'lssr', 'skipped')
    every = super().summary()
    return {k: every[k] for k in every if k not in lockstep}
