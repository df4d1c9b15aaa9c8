"""Makes the problem, the strategy and the plan of a run from its settings."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax

from selsync_jax import methods
from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError
from selsync_jax.devices import mappers
from selsync_jax.devices.mapper import Mapper
from selsync_jax.models import tasks
from selsync_jax.sync import traffic
from selsync_jax.sync.part import shown
from selsync_jax.sync.strategy import Strategy
from selsync_jax.training.problem import create_problem
from selsync_jax.training.problem import Problem
from selsync_jax.training.settings import Settings
from selsync_jax.training.step import init_state
from selsync_jax.training.step import train_step
from selsync_jax.training.step import TrainState


class Plan(NamedTuple):
  """Where a run takes place, and how often things happen.

  Attributes:
    mapper: how the workers share the devices.
    evaluate_every: the steps from one evaluation to the next.
    save_every: the steps from one checkpoint to the next.
    fetch_every: the steps whose metrics are fetched from the device together.
    line_seconds: the seconds without a printed line after which the next row
      is printed.
    check_replicas: the synchronizations from one comparison of the replicas to
      the next; 0 is never.
    max_skips: how many updates in a row a worker may skip because its gradient
      is not finite, before the run ends.
    resize: the rule for the optimizer's state if the number of workers changes,
      a name in `resize.OPTIMIZER_STATE`.
  """

  mapper: Mapper
  evaluate_every: int
  save_every: int
  fetch_every: int
  line_seconds: float
  check_replicas: int
  max_skips: int
  resize: str

  @property
  def workers(self) -> int:
    """The number of workers of all processes."""
    return self.mapper.workers


@dataclasses.dataclass(frozen=True)
class Setup:
  """A run that is ready to start.

  Attributes:
    problem: what is trained.
    strategy: when workers communicate, and what happens then.
    plan: where the run takes place, and how often things happen.
  """

  problem: Problem
  strategy: Strategy
  plan: Plan

  def init(self) -> TrainState:
    """Returns one worker's state before the first step; all start equal."""
    return self._state(*self.problem.init())

  def traced_init(self) -> TrainState:
    """Returns the same inside a program that the caller compiles."""
    return self._state(*self.problem.traced_init())

  def _state(self, params: Any, model_state: Any) -> TrainState:
    return init_state(
      params, model_state, self.strategy, self.problem.optimizer
    )

  @functools.cached_property
  def shapes(self) -> TrainState:
    """The shapes of one worker's state."""
    return jax.eval_shape(self._state, *self.problem.shapes.values())

  def train_step(self) -> Callable[[TrainState, Any], tuple[TrainState, Any]]:
    """Returns the compiled step of local workers; it donates the state."""
    problem, plan = self.problem, self.plan
    step = train_step(
      tasks.train_loss(problem.model, problem.task),
      self.strategy,
      problem.optimizer,
      problem.seed,
      plan.check_replicas,
      plan.mapper.alone,
    )
    return plan.mapper.map_workers(step, donate=(0,))

  @property
  def traffic(self) -> traffic.Traffic:
    """The bytes that each worker sends."""
    shapes, workers = self.shapes, self.plan.workers
    sent = traffic.traffic(
      self.strategy.sends(shapes.shared, workers, shapes.opt_state),
      shapes.params,
      workers,
    )
    return sent._replace(injected=self.problem.data.injected_bytes_per_step)


def create_setup(settings: Settings) -> Setup:
  """Makes the setup of a run, before any device work.

  Raises:
    ConfigError: for the first field whose value breaks its rule.
  """
  config = settings.config
  # Find mistakes in the method before reading the data, which can take long.
  trigger = settings.strategy(methods.Context(1000, config.seed)).trigger
  problem = create_problem(settings)
  if (spacing := trigger.traits.spacing) > problem.steps:
    raise ConfigError(
      f'config.sync: trigger {shown(trigger)} takes {spacing} steps from one '
      f'synchronization to the next, and the run has only {problem.steps} steps'
    )
  strategy = settings.strategy(
    methods.Context(problem.steps_per_epoch, config.seed, problem.learning_rate)
  )
  setup = Setup(problem, strategy, create_plan(config, problem))
  with config_errors('sync'):
    strategy.trigger.traits.affordable(setup.traffic)
  return setup


def create_plan(config: Any, problem: Problem) -> Plan:
  """Makes the plan of a run that trains a problem."""
  return Plan(
    mapper=mappers.choose(config.mapper, config.workers, **config.mesh),
    evaluate_every=max(
      1, round(config.eval.every_epochs * problem.steps_per_epoch)
    ),
    save_every=config.checkpoint.every,
    fetch_every=config.log.fetch_every,
    line_seconds=config.log.seconds,
    check_replicas=config.check_replicas,
    max_skips=config.max_skips if config.on_nonfinite == 'skip' else 0,
    resize=config.checkpoint.resize,
  )
