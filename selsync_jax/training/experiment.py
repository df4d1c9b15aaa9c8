"""A config made concrete: data, model, method and optimizer of one run."""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import ml_collections
import numpy as np
import optax

from selsync_jax import methods
from selsync_jax import models
from selsync_jax import optimizers
from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError
from selsync_jax.config import lookup
from selsync_jax.data import Data
from selsync_jax.data import open_data
from selsync_jax.data.sources import DATASETS
from selsync_jax.devices import mappers
from selsync_jax.models import tasks
from selsync_jax.sync import traffic
from selsync_jax.sync.strategy import Strategy
from selsync_jax.training.rules import check_config
from selsync_jax.training.step import init_state
from selsync_jax.training.step import train_step
from selsync_jax.training.step import TrainState


class Intervals(NamedTuple):
  """How often something happens in a run, in steps.

  Attributes:
    evaluate: from one evaluation to the next.
    save: from one checkpoint to the next.
    log: from one row of metrics to the next.
    fetch: steps whose metrics are fetched from the device together.
  """

  evaluate: int
  save: int
  log: int
  fetch: int


@dataclasses.dataclass(frozen=True)
class Experiment:
  """One run, validated.

  Attributes:
    task: what the model is trained for.
    model: the flax module.
    data: what is read, and by which worker.
    strategy: when workers talk, and what happens then.
    optimizer: of the local update.
    learning_rate: a function of the optimizer step.
    peak_rate: the peak of the learning rate.
    workers: N.
    mapper: how the workers share the devices.
    batch_size: examples per worker and step.
    eval_batch_size: examples per worker and evaluation batch.
    seed: of weights, shuffles, dropout and draws.
    steps: optimizer steps of the whole run.
    intervals: how often to evaluate, save and log.
    check_replicas: synchronizations from one comparison of the replicas to the
      next; 0 is never.
    max_skips: how many times in a row a gradient that is not finite drops the
      worker's update, before it ends the run.
  """

  task: tasks.Task
  model: nn.Module
  data: Data
  strategy: Strategy
  optimizer: optax.GradientTransformation
  learning_rate: optax.Schedule
  peak_rate: float
  workers: int
  mapper: mappers.Mapper
  batch_size: int
  eval_batch_size: int
  seed: int
  steps: int
  intervals: Intervals
  check_replicas: int
  max_skips: int

  @property
  def steps_per_epoch(self) -> int:
    """Steps in which the workers together read as much as one data set."""
    return self.data.steps_per_epoch

  def init(self) -> TrainState:
    """One worker's state before the first step; all workers start equal."""
    return self._start(tasks.init)

  def traced_init(self) -> TrainState:
    """The same, as part of a program that the caller compiles."""
    return self._start(tasks.traced_init)

  def _start(self, init: Callable[..., tuple[Any, Any]]) -> TrainState:
    key = jax.random.key(self.seed)
    model = init(self.model, self.task, self.data.example, key)
    return init_state(*model, self.strategy, self.optimizer)

  @functools.cached_property
  def shapes(self) -> TrainState:
    """The shapes of one worker's state."""
    init = functools.partial(
      init_state, strategy=self.strategy, optimizer=self.optimizer
    )
    return jax.eval_shape(
      init, *tasks.init_shapes(self.model, self.task, self.data.example)
    )

  def train_step(self) -> Callable[[TrainState, Any], tuple[TrainState, Any]]:
    """The step of all local workers, compiled; it consumes the old state."""
    step = train_step(
      tasks.train_loss(self.model, self.task),
      self.strategy,
      self.optimizer,
      self.seed,
      self.check_replicas,
      functools.partial(mappers.alone, mapper=self.mapper),
    )
    return mappers.map_workers(step, self.mapper, donate=(0,))

  def traffic(self, workers: int) -> traffic.Traffic:
    """The bytes that each worker sends, if there are `workers` of them."""
    shapes = self.shapes
    sent = traffic.traffic(
      self.strategy.sends(shapes.shared, workers, shapes.opt_state),
      shapes.params,
      workers,
    )
    return sent._replace(injected=self.data.injected_bytes_per_step)


def create_experiment(config: ml_collections.ConfigDict) -> Experiment:
  """The experiment of a config, before any device work.

  Raises:
    ConfigError: for the first field whose value breaks its rule.
  """
  check_config(config)
  # Its mistakes are found before the data are read, which can take long.
  _strategy(config, 1000, optax.constant_schedule(0.1))
  data = open_data(
    config.data.to_dict(),
    workers=config.workers,
    batch_size=config.batch_size,
    seed=config.seed,
  )
  with config_errors('data'):
    task = lookup(tasks.TASKS, data.task)
  per_epoch = data.steps_per_epoch
  steps = config.steps or _steps(config.epochs, per_epoch)
  if (every := config.sync.get('vote_every') or 1) > steps:
    raise ConfigError(
      f'config.sync.vote_every={every}: the run has only {steps} steps'
    )
  learning_rate = _learning_rate(config, per_epoch, steps)
  experiment = Experiment(
    task=task,
    model=_model(config, task, data),
    data=data,
    strategy=_strategy(config, per_epoch, learning_rate),
    optimizer=_optimizer(config, learning_rate),
    learning_rate=learning_rate,
    peak_rate=config.optimizer.learning_rate,
    workers=config.workers,
    mapper=mappers.choose(config.mapper, config.workers, **config.mesh),
    batch_size=config.batch_size,
    eval_batch_size=config.eval.batch_size,
    seed=config.seed,
    steps=steps,
    intervals=Intervals(
      evaluate=max(1, round(config.eval.every_epochs * per_epoch)),
      save=config.checkpoint.every,
      log=config.log.every,
      fetch=config.log.fetch_every,
    ),
    check_replicas=config.check_replicas,
    max_skips=config.max_skips if config.on_nonfinite == 'skip' else 0,
  )
  _check_optimizer(experiment)
  with config_errors('sync'):
    experiment.strategy.trigger.affordable(experiment.traffic(config.workers))
  return experiment


def _steps(epochs: float, per_epoch: int) -> int:
  steps = math.ceil(epochs * per_epoch)
  if epochs * per_epoch < 0.5 or steps > 10**8:
    raise ConfigError(
      f'config.epochs={epochs!r}: an epoch has {per_epoch} steps, and a run '
      'must have from 1 to 10**8'
    )
  return steps


def _strategy(config, per_epoch, learning_rate) -> Strategy:
  with config_errors('sync'):
    context = methods.Context(per_epoch, config.seed, learning_rate)
    strategy = methods.create_strategy(context=context, **config.sync.to_dict())
    strategy.averager.check(config.workers)
  return strategy


def _check_optimizer(experiment: Experiment) -> None:
  """Raises `ConfigError` if the optimizer cannot update these parameters.

  Some of optax's need more than the gradient, or gradients of each example.
  """
  params = experiment.shapes.params
  try:
    state = jax.eval_shape(experiment.optimizer.init, params)
    jax.eval_shape(experiment.optimizer.update, params, state, params)
  except Exception as error:
    text = ' '.join(str(error).split())[:200]
    raise ConfigError(
      f'config.optimizer: it cannot train this model: {text}'
    ) from error


def _model(config, task, data) -> nn.Module:
  with config_errors('model'):
    model = models.create_model(num_outputs=data.num_classes, **config.model)
    tasks.check_inputs(data.task, data.example)
    with models.MODELS.errors(config.model.name, 'model'):
      # The images may be too small for the model.
      shapes = tasks.init_shapes(model, task, data.example)
  if DATASETS.is_own(config.data.name):
    tasks.check_metrics(data.task, model, shapes, data.example)
  return model


def _learning_rate(config, per_epoch, steps) -> optax.Schedule:
  """The schedule, from epochs to steps."""
  shape = dict(config.schedule)
  if shape['milestones'] is not None:
    shape['milestones'] = [round(m * per_epoch) for m in shape['milestones']]
  with config_errors('schedule'):
    return optimizers.create_schedule(
      peak=config.optimizer.learning_rate,
      warmup_steps=round(shape.pop('warmup_epochs') * per_epoch),
      steps=steps,
      **shape,
    )


def _optimizer(config, learning_rate) -> optax.GradientTransformation:
  options = dict(config.optimizer) | {'learning_rate': learning_rate}
  with config_errors('optimizer'):
    optimizer = optimizers.create_optimizer(**options)
  if config.on_nonfinite == 'skip':
    optimizer = optax.apply_if_finite(optimizer, np.iinfo(np.int32).max)
  return optimizer
