"""The steps of an asynchronous run: their metrics and their ledger."""

import collections
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from selsync_jax.runs.ledger import NonFiniteError
from selsync_jax.runs.ledger import Totals
from selsync_jax.runs.session import Session
from selsync_jax.simulate.engine import Engine
from selsync_jax.simulate.ledgers import VirtualLedger
from selsync_jax.simulate.simulation import Span
from selsync_jax.simulate.simulation import Use
from selsync_jax.sync.traffic import traffic
from selsync_jax.training.problem import Problem
from selsync_jax.training.setup import Plan


class Moment(NamedTuple):
  """The engine's record of a step.

  Attributes:
    uses: the gradients that reached the model.
    versions: the versions of the workers' models after the step.
    spans: what the workers did since the step before.
  """

  uses: list[Use]
  versions: list[int]
  spans: list[Span]


class AsynchronousLedger(VirtualLedger):
  """A ledger of steps whose gradients reach the model one by one.

  Args:
    totals: the totals of the run so far; updated in place.
    problem: what is trained.
    plan: where the run takes place.
  """

  def __init__(self, totals: Totals, problem: Problem, plan: Plan):
    sent = traffic((), problem.shapes['params'], plan.workers)
    super().__init__(
      totals,
      sent._replace(injected=problem.data.injected_bytes_per_step),
      problem.steps_per_epoch,
      problem.rates,
      plan.max_skips,
    )
    self._moments: collections.deque[Moment] = collections.deque()

  def expect(self, uses: list[Use], engine: Engine) -> None:
    """Queues a step, which `count` will count after the ones before it."""
    versions = list(engine.sim.versions)
    self._moments.append(Moment(uses, versions, engine.spans()))

  def count(self, metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Counts the step, its traffic, and its virtual time.

    Raises:
      NonFiniteError: if a loss is not finite.
    """
    totals, (uses, versions, spans) = self.totals, self._moments.popleft()
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
    """Returns the totals that an asynchronous run has."""
    lockstep = ('sync_steps', 'local_steps', 'lssr', 'skipped')
    every = super().summary()
    return {k: every[k] for k in every if k not in lockstep}


def restore(engine: Engine, session: Session) -> None:
  """Brings a new engine to the run's last checkpoint; prints its step."""
  session.say('compiling')
  if session.record is None:
    return
  record = session.record['engine']
  engine.resume(session.checkpoints.restore(engine.like(record)), record)
  engine.spans()  # The rows of earlier steps have them already.
  session.say(f'resuming from step {session.step}')


def metrics(uses: list[Use]) -> dict[str, jax.Array]:
  """Returns the metrics of a step: arrays [N], one entry per gradient."""
  each = jax.device_get([use.metrics.tree for use in uses])
  stacked = jax.tree.map(lambda *x: np.stack(x), *each)
  stacked['unequal'] = np.full(len(uses), -1, np.int32)
  return jax.device_put(stacked)
