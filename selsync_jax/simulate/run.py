"""A simulated run from config to summary."""

import functools
import math
import pathlib
from typing import Any

import jax
import ml_collections
import numpy as np

from selsync_jax.config import ConfigError
from selsync_jax.devices.mappers import Vmap
from selsync_jax.runs.store import Store
from selsync_jax.simulate import asynchronous, lockstep
from selsync_jax.simulate.cluster import create_cluster, VirtualCluster
from selsync_jax.simulate.engine import Engine
from selsync_jax.simulate.ledgers import AsynchronousLedger
from selsync_jax.simulate.numerics import Numerics
from selsync_jax.simulate.simulation import Simulation, Use
from selsync_jax.sync.traffic import nbytes
from selsync_jax.training import start
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.hooks import Hooks
from selsync_jax.training.participants import Participants
from selsync_jax.training.problem import create_problem, Problem
from selsync_jax.training.settings import check, Config, Settings
from selsync_jax.training.train import describe_data, train_and_evaluate


def simulate(
  config: Config,
  workdir: pathlib.Path,
  *,
  restart: bool = False,
  accept_changes: bool = False,
) -> dict[str, Any]:
  """Trains on the virtual cluster of a config, and writes the run.

  The config's method is lockstep or asynchronous. See `train_and_evaluate` for
  the arguments and errors. The result is the summary, as in `summary.json`.
  """
  settings = check(config)
  refuse(settings)
  config = settings.config.copy_and_resolve_references()
  config.update(mapper='vmap')  # Time is virtual.
  settings = settings._replace(config=config)
  if settings.method is None:
    return _train_asynchronously(settings, workdir, restart, accept_changes)
  return train_and_evaluate(
    settings,
    workdir,
    restart=restart,
    accept_changes=accept_changes,
    create_ledger=functools.partial(
      lockstep.create_ledger, cluster=config.virtual_cluster.to_dict()
    ),
  )


def _cluster(
  config: ml_collections.ConfigDict, steps: int = 0
) -> VirtualCluster:
  return create_cluster(
    config.virtual_cluster.to_dict(),
    workers=config.workers,
    steps=steps,
    seed=config.seed,
  )


def refuse(settings: Settings) -> None:
  """Raises `ConfigError` for settings that a simulation does not support."""
  config = settings.config
  if math.prod(config.mesh.values()) > 1:
    raise ConfigError(
      f'config.mesh={config.mesh.to_dict()}: each worker of a simulation has '
      'one device'
    )
  cluster = _cluster(config)
  if settings.method is not None:
    Participants(Vmap(config.workers)).check(settings)
    return
  usual = ('on_nonfinite', 'stop'), ('ema_decay', None), ('pace', 'lockstep')
  for field, only in usual:
    if config[field] != only:
      raise ConfigError(
        f'config.{field}={config[field]!r}: must be {only} because '
        f'{config.sync.method} is asynchronous'
      )
  method = asynchronous.create_method(**config.sync.to_dict())
  method(Simulation(cluster, nbytes=0.0))


def _train_asynchronously(
  settings: Settings, workdir: pathlib.Path, restart: bool, accept_changes: bool
) -> dict[str, Any]:
  """Trains with a method whose workers do not take the same steps.

  A step of such a run is N gradients that reach the model, from any workers:
  as many as N workers in lockstep compute at a step.
  """
  config = settings.config
  store = Store(workdir, config.to_dict(), restart=restart)
  _check(config, store)
  method = asynchronous.create_method(**config.sync.to_dict())
  store.say('preparing data')
  problem = create_problem(start.adapt(settings, store.record))
  _check_held(config, problem)
  start.check_size(problem)
  alone = Participants(Vmap(config.workers))
  cluster = _cluster(config, problem.steps)
  numerics = Numerics(problem, config.optimizer.to_dict())
  injected, size = problem.data.injected_bytes_per_step, nbytes(problem.shapes)
  sim = Simulation(cluster, size, numerics, problem.seed, injected)
  engine = Engine(method, sim)
  totals = start.totals(problem, alone.mapper, store.record)
  ledger = AsynchronousLedger(totals, problem, config.workers)
  found = problem.fingerprint | cluster.files
  for change in store.identify(found, accept_changes):
    if change.startswith('trace'):  # A resumed run replays its clock.
      raise ConfigError(
        f'config.virtual_cluster.trace: {change}; {config.sync.method} cannot '
        'resume with another trace'
      )
  with store:  # Errors until here have written nothing.
    if summary := store.outcome(totals, problem.steps):
      return summary
    describe_data(store, problem)
    _restore(engine, store)
    evaluator = Evaluator(problem, alone)
    first = totals.position
    with Hooks(store, problem, config, ledger, evaluator, alone) as run:
      arrays, record = engine.save()
      run.rehearse(arrays, engine=record)
      for position in range(first + 1, problem.steps + 1):
        uses = engine.advance(position * config.workers)
        ledger.expect(uses, engine)
        now = run.record(position, _metrics(uses))
        if now.evaluates:
          run.evaluate(now, engine.shared())
        if now.saves:
          arrays, record = engine.save()
          run.save(arrays, engine=record)
        run.stop(now)
      results = run.results(engine.shared())
    return store.finish(results)


def _check(config: ml_collections.ConfigDict, store: Store) -> None:
  """Raises `ConfigError` if a run cannot resume with these workers."""
  record = store.record
  if record and record['workers'] != config.workers:
    raise ConfigError(
      f'config.workers={config.workers}: must be {record["workers"]}, as in '
      f'{store.workdir}; {config.sync.method} cannot change them'
    )


def _check_held(config: ml_collections.ConfigDict, problem: Problem) -> None:
  """Raises `ConfigError` if an average would be undone by the next update."""
  names, method = problem.copies.names, config.sync.method
  if names and method not in asynchronous.WITHOUT_AVERAGES:
    raise ConfigError(
      f'config.optimizer.name={config.optimizer.name!r}: holds '
      f'parameters, such as {names[0]}, which {method} does not average; '
      'choose another optimizer'
    )


def _restore(engine: Engine, store: Store) -> None:
  """Brings a new engine to the run's last checkpoint; prints its step."""
  store.say('compiling')
  if store.record is None:
    return
  record = store.record['engine']
  engine.resume(store.checkpoints.restore(engine.like(record)), record)
  engine.spans()  # The rows of earlier steps have them already.
  store.say(f'resuming from step {store.step}')


def _metrics(uses: list[Use]) -> dict[str, jax.Array]:
  """Returns the metrics of a step: arrays [N], one entry per gradient."""
  each = jax.device_get([use.metrics.tree for use in uses])
  return jax.device_put(jax.tree.map(lambda *x: np.stack(x), *each))
