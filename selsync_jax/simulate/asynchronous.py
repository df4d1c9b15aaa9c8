"""Asynchronous methods as runs: rows, evaluations, checkpoints.

A step of such a run is N gradients that reach the model, whoever computed them:
as many as N workers in lockstep compute at a step.
"""

import collections
from collections.abc import Callable, Mapping
import contextlib
import functools
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError
from selsync_jax.runs.checkpoints import Checkpoints
from selsync_jax.runs.ledger import Ledger
from selsync_jax.runs.ledger import NonFiniteError
from selsync_jax.runs.ledger import Totals
from selsync_jax.simulate import methods
from selsync_jax.simulate.cluster import create_cluster
from selsync_jax.simulate.engine import Engine
from selsync_jax.simulate.ledgers import VirtualLedger
from selsync_jax.simulate.numerics import Numerics
from selsync_jax.simulate.simulation import Span
from selsync_jax.simulate.simulation import Use
from selsync_jax.sync.traffic import nbytes
from selsync_jax.training.course import Course
from selsync_jax.training.recorder import create_ledger
from selsync_jax.training.recorder import Recorder


class Moment(NamedTuple):
  """What the engine reports of a step.

  Attributes:
    uses: the gradients that reached the model.
    versions: of the workers' models after the step.
    spans: what workers did since the step before.
  """

  uses: list[Use]
  versions: list[int]
  spans: list[Span]


class Asynchronous(Course):
  """The course of a run whose workers do not take the same steps.

  Its state is the engine of the simulation.

  Args:
    config: of the run.

  Raises:
    ConfigError: for a value that breaks its rule.
  """

  def __init__(self, config: ml_collections.ConfigDict):
    if config.on_nonfinite != 'stop':
      raise ConfigError(
        f'config.on_nonfinite={config.on_nonfinite!r}: must be stop, as '
        f'{config.sync.method} is asynchronous'
      )
    super().__init__(_as_bsp(config))
    with config_errors('sync'):
      method = methods.create_method(**config.sync.to_dict())
    experiment = self.experiment
    self._engine = Engine(
      method,
      create_cluster(
        config.cluster.to_dict(),
        workers=config.workers,
        steps=experiment.steps,
        seed=config.seed,
      ),
      nbytes(experiment.shapes.shared),
      Numerics(experiment, config.optimizer.to_dict()),
      config.seed,
    )
    self._moments: collections.deque[Moment] = collections.deque()

  def ledger(self, totals: Totals) -> Ledger:
    """The ledger of the run, which stands at `totals`."""
    kind = functools.partial(AsynchronousLedger, moments=self._moments)
    return create_ledger(self.experiment, totals, self.experiment.workers, kind)

  def state(
    self,
    checkpoints: Checkpoints,
    totals: Totals,
    record: Mapping[str, Any] | None,
  ) -> tuple[Engine, str | None]:
    """The engine, at the start or where it was saved."""
    engine = self._engine
    if record is None:
      return engine, None
    like = engine.like(record['engine'])
    arrays = checkpoints.restore(totals.steps, like)
    engine.resume(arrays, record['engine'])
    engine.spans()  # Those of the steps before are in their rows.
    return engine, f'resuming from step {totals.steps}'

  def run(
    self,
    state: Engine,
    recorder: Recorder,
    workers: range,
    after: Callable[[int, Engine], None],
    trace: Callable[[int], contextlib.AbstractContextManager[Any]],
  ) -> Engine:
    """Advances the engine to the last step."""
    start, stop = recorder.totals.position, self.experiment.steps
    for position in range(start + 1, stop + 1):
      with trace(position):
        uses = state.advance(position * len(workers))
      versions = list(state.sim.versions)
      self._moments.append(Moment(uses, versions, state.spans()))
      recorder.add(_metrics(uses))
      after(position, state)
      recorder.enter_ready()
    return state

  def shared(self, state: Engine) -> dict[str, Any]:
    """What is evaluated: `{'params', 'model_state'}`, worker-stacked."""
    return state.shared()

  def saved(self, state: Engine) -> tuple[Any, dict[str, Any]]:
    """What a checkpoint holds: arrays, and what JSON can hold."""
    arrays, record = state.save()
    return arrays, {'engine': record}


class AsynchronousLedger(VirtualLedger):
  """A ledger of steps whose gradients reach the model one by one.

  Args:
    *arguments: of `Ledger`.
    moments: of the steps to count, the oldest first; they are taken away.
    **options: of `Ledger`.
  """

  def __init__(
    self,
    *arguments: Any,
    moments: collections.deque[Moment],
    **options: Any,
  ):
    super().__init__(*arguments, **options)
    self._moments = moments

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
    """The totals; without those that only lockstep has."""
    lockstep = ('sync_steps', 'local_steps', 'lssr', 'skipped')
    every = super().summary()
    return {k: every[k] for k in every if k not in lockstep}


def _as_bsp(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """The config with a method that an experiment knows, and nobody uses."""
  config = config.copy_and_resolve_references()
  with config.unlocked():
    config.sync = ml_collections.ConfigDict({'method': 'bsp'})
  return config


def _metrics(uses: list[Use]) -> dict[str, jax.Array]:
  """The metrics of a step: of each gradient, [N]."""
  each = jax.device_get([use.metrics.tree for use in uses])
  stacked = jax.tree.map(lambda *x: np.stack(x), *each)
  stacked['unequal'] = np.full(len(uses), -1, np.int32)
  return jax.device_put(stacked)
