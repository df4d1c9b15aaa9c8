"""Makes the problem and the strategy of a run from its settings."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import hashlib
import json
from typing import Any

import jax
import ml_collections
import numpy as np

from selsync_jax.array_names import by_name
from selsync_jax.config import config_errors, ConfigError
from selsync_jax.devices.mappers import abstract, Mapper, Vmap
from selsync_jax.methods import Context, METHODS
from selsync_jax.models import tasks
from selsync_jax.runs.ledger import Ledger, Totals
from selsync_jax.sync import flat, traffic
from selsync_jax.sync.strategy import Strategy
from selsync_jax.training.problem import create_problem, Problem
from selsync_jax.training.settings import Settings
from selsync_jax.training.step import init_state, train_step, TrainState


@dataclasses.dataclass(frozen=True)
class Setup:
  """A run that is ready to start."""

  problem: Problem
  strategy: Strategy
  mapper: Mapper  # How the workers share the devices.
  config: ml_collections.ConfigDict  # The run's config, which decides the rest.

  def init(self, given: Mapping[str, Any]) -> TrainState:
    """Returns one worker's state before the first step; all start equal.

    See `Problem.init`. The mapper compiles the program if it `compiles`.
    """
    return self._state(*self.problem.init(given, self.mapper.compiles))

  def initial(self) -> TrainState:
    """Returns the workers' state before the first step, on their devices."""
    # A mesh splits the arrays if they are arguments; it would copy constants.
    return self.mapper.replicate(
      self.init, self.problem.given.arrays, compiler_options=tasks.run_once()
    )

  def _state(self, params: Any, model_state: Any) -> TrainState:
    return init_state(
      params,
      model_state,
      self.strategy,
      self.problem.optimizer,
      self.config.ema_decay,
      self.problem.frozen,
      self.problem.copies,
    )

  @functools.cached_property
  def shapes(self) -> TrainState:
    """The shapes of one worker's state."""
    return jax.eval_shape(self._state, *self.problem.shapes.values())

  def batch(self, examples: int) -> Any:
    """Returns the shapes of one worker's batch."""
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        (examples, *np.shape(x)[1:]), np.asarray(x).dtype
      ),
      self.problem.data.example,
    )

  def train_step(self) -> Callable[[TrainState, Any], tuple[TrainState, Any]]:
    """Returns the compiled step of local workers; it donates the state."""
    return self.mapper.map_workers(self.worker_step(), donate=(0,))

  def worker_step(self) -> Callable[[TrainState, Any], tuple[TrainState, Any]]:
    """Returns the step of one worker, see `step.train_step`."""
    problem, config = self.problem, self.config
    trigger = self.strategy.trigger.with_traffic(self.traffic)
    return train_step(
      tasks.train_loss(problem.model, problem.task),
      self.strategy._replace(trigger=trigger),
      problem.optimizer,
      problem.seed,
      config.check_replicas_every,
      self.mapper.alone,
      problem.accumulate,
      config.ema_decay,
    )

  def landed(self, state: TrainState) -> dict[str, Any]:
    """Returns `state.scored` with the averages in flight applied.

    A moving average of the parameters stays as it is.
    """
    averager = self.strategy.averager
    return self._land(state) if averager.steps_late else state.scored

  @functools.cached_property
  def _land(self) -> Callable[[TrainState], dict[str, Any]]:
    strategy = self.strategy

    def land(state):
      averaged = strategy.averaged(state.shared)
      landed = strategy.averager.land(averaged, state.averager_state)
      return state.with_shared(landed).scored

    return self.mapper.map_workers(land)

  def program(self) -> str:
    """Returns the step of all workers on one device, as StableHLO.

    On one device, because JAX cannot lower a pmapped function of several
    processes from shapes alone.
    """
    workers, batch = self.mapper.workers, self.batch(self.problem.batch_size)
    alone = dataclasses.replace(self, mapper=Vmap(workers))
    shapes = abstract(self.shapes, workers), abstract(batch, workers)
    return jax.jit(alone.train_step()).lower(*shapes).as_text()

  @functools.cached_property
  def digest(self) -> bytes:
    """A digest of the data and of the training step."""
    text = json.dumps(self.problem.fingerprint['data']) + self.program()
    return hashlib.sha256(text.encode()).digest()

  @property
  def identity(self) -> bytes:
    """The `digest`, with a digest of the weights that a new run starts from."""
    given = self.problem.fingerprint.get('init_from')
    if not given:  # Islands that join later have none.
      return self.digest
    return hashlib.sha256(self.digest + json.dumps(given).encode()).digest()

  @functools.cached_property
  def traffic(self) -> traffic.Traffic:
    """The bytes that each worker sends."""
    shapes, workers = self.shapes, self.mapper.workers
    sent = traffic.traffic(
      self.strategy.sends(shapes.shared, workers, shapes.moments),
      shapes.trained,
      workers,
    )
    return sent._replace(injected=self.problem.data.injected_bytes_per_step)

  def ledger(
    self, totals: Totals, kind: Callable[..., Ledger] = Ledger
  ) -> Ledger:
    """Returns the ledger of the run, which updates its totals in place."""
    return kind(
      totals,
      self.traffic,
      self.problem.steps_per_epoch,
      self.problem.rates,
      max_skips=self.problem.max_skips,
      leaf_names=[*by_name(self.problem.shapes['params'])],
    )


def create_setup(settings: Settings, mapper: Mapper | None = None) -> Setup:
  """Makes the setup of a run, before any device work.

  By default, the config names the mapper.
  """
  config = settings.config
  problem = create_problem(settings)
  context = problem.steps_per_epoch, config.seed, problem.learning_rate
  strategy = _strategy(settings, Context(*context))
  trigger = strategy.trigger
  if (spacing := trigger.traits.spacing) > problem.steps:
    raise ConfigError(
      f'config.sync: trigger {trigger} takes {spacing} steps from one '
      f'synchronization to the next, but the run has only {problem.steps} steps'
    )
  setup = Setup(problem, strategy, mapper or settings.mapper, config)
  _check_pace(setup)
  _check_statistics(setup)
  with config_errors('sync'):
    sent = setup.traffic  # The optimizer may lack a moment.
    for budget in strategy.trigger.traits.budgets:
      budget(sent)
  return setup


def _check_statistics(setup: Setup) -> None:
  """Raises `ConfigError` if averages would spoil batch statistics."""
  strategy, shapes = setup.strategy, setup.problem.shapes['model_state']
  averages = strategy.averages_model_state and strategy.averager.withholds
  if averages and flat.floats(shapes):
    raise ConfigError(
      f"config.sync.model_state='mean': {strategy.averager} sends many changes "
      "late, which makes batch statistics diverge; set it to 'recompute'"
    )


def _check_pace(setup: Setup) -> None:
  """Raises `ConfigError` if workers cannot keep their own pace."""
  if setup.config.pace != 'free':
    return
  strategy, why = setup.strategy, ''
  shapes = setup.problem.shapes['params']
  if strategy.trigger.sends(shapes, setup.mapper.workers):
    why = f'trigger {strategy.trigger} votes'
  elif strategy.reducer.traits.reduces:
    why = f'reducer {strategy.reducer} changes gradients'
  if why:
    raise ConfigError(
      f"config.pace='free': {why}; it needs a trigger that does not vote, such "
      'as every, and no reducer'
    )


def draft(settings: Settings) -> Strategy:
  """Makes a strategy as if an epoch had 1,000 steps, to check the config.

  It raises `ConfigError` without opening the data, which say how many steps
  there are.
  """
  return _strategy(settings, Context(1000, settings.config.seed))


def _strategy(settings: Settings, context: Context) -> Strategy:
  """Makes the strategy of a run; refuses an asynchronous method."""
  if settings.method is None:
    raise ConfigError(
      f'config.sync.method={settings.config.sync.method!r}: is not one of '
      f'{", ".join(METHODS)}'
    )
  strategy = settings.method(context)
  with config_errors('sync'):
    strategy.averager.check(settings.config.workers)
  return strategy
