"""The problem that a run solves: data, model, task and optimizer."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import math
from typing import Any

import flax
import flax.linen as nn
import jax
import numpy as np
import optax

from selsync_jax import models, optimizers, user_errors
from selsync_jax.array_names import by_name
from selsync_jax.config import config_errors, ConfigError, lookup
from selsync_jax.data import Data, ids, open_data, own
from selsync_jax.data.protocol import Dataset, unchanged
from selsync_jax.data.sources import DATASETS
from selsync_jax.models import loss_program, tasks
from selsync_jax.runs import array_files, initial, ledger, weights
from selsync_jax.runs.source import Source
from selsync_jax.sync.copies import Leaves, parameter_copies
from selsync_jax.training.settings import Settings


@dataclasses.dataclass(frozen=True)
class Problem:
  """The problem that a run solves, independent of the method."""

  task: tasks.Task
  model: nn.Module
  data: Data  # And the part that each worker reads.
  optimizer: optax.GradientTransformation  # Of the local update.
  learning_rate: optax.Schedule  # By optimizer step.
  peak_rate: float
  batch_size: int  # Examples per worker and step.
  accumulate: int  # The pieces in which a batch is computed, see `gradient`.
  eval_batch_size: int  # Examples per worker and evaluation batch.
  seed: int  # It seeds weights, shuffles, dropout and draws.
  steps: int  # Optimizer steps of the whole run.
  evaluate_every: int  # Steps from one evaluation to the next.
  # How many updates in a row a worker may skip because its gradient is not
  # finite, before the run ends.
  max_skips: int
  source: Source | None  # For initial weights.
  is_frozen: Callable[[str], bool]  # Of a parameter's name.
  code: Mapping[str, Any]  # See `Settings.code_of`.

  @property
  def steps_per_epoch(self) -> int:
    """Steps in which the workers together read as much as the data set."""
    return self.data.assignment.steps_per_epoch

  def init(
    self, given: Mapping[str, Any], traced: bool = False
  ) -> tuple[Any, Any]:
    """Returns parameters and model state before the first step.

    The `given` arrays, by name, replace the seed's initial arrays. The caller
    compiles the program if it is `traced`.
    """
    init = tasks.traced_init if traced else tasks.init
    key = jax.random.key(self.seed)
    params, model_state = init(self.model, self.task, self.data.example, key)
    variables = {'params': params, **model_state}
    return tasks.split(array_files.replaced(variables, given))

  @functools.cached_property
  def given(self) -> initial.Given:
    """The weights to start from, read from their source; empty without one."""
    if self.source is None:
      return initial.Given({}, '')
    return initial.read(self.source, weights.joined(self.shapes))

  def forget_given(self) -> None:
    """Frees the memory of `given`, which is read again if it is used again."""
    self.__dict__.pop('given', None)

  @functools.cached_property
  def shapes(self) -> dict[str, Any]:
    """The shapes of `{'params', 'model_state'}` of one worker."""
    params, model_state = tasks.init_shapes(
      self.model, self.task, self.data.example
    )
    return {'params': params, 'model_state': model_state}

  @functools.cached_property
  def frozen(self) -> Leaves:
    """The parameters that the optimizer never changes."""
    names = enumerate(by_name(self.shapes['params']))
    found = [(name, i) for i, name in names if self.is_frozen(name)]
    return Leaves(tuple(n for n, _ in found), tuple(i for _, i in found))

  @functools.cached_property
  def copies(self) -> Leaves:
    """The parameters that the optimizer holds in its own state."""
    return parameter_copies(self.optimizer, self.shapes['params'])

  @functools.cached_property
  def fingerprint(self) -> dict[str, Any]:
    """The fingerprint of data, model and code, for JSON."""
    example = self.data.example
    program = loss_program.digest(self.model, self.task, self.shapes, example)
    packages = {'jax': jax.__version__, 'flax': flax.__version__}
    return {
      'data': self.data.fingerprint,
      'model': {'program': program, 'versions': packages},
      **(self.given.fingerprint if self.source else {}),
      **self.code,
    }

  @functools.cached_property
  def rates(self) -> np.ndarray:
    """The learning rate at every step of the run, [steps]."""
    # One by one, each would wait for the step on the device.
    rates = jax.jit(jax.vmap(self.learning_rate))
    return np.asarray(rates(np.arange(self.steps)))


def create_problem(settings: Settings) -> Problem:
  """Makes and checks the problem of a run, before any device work."""
  config = settings.config
  if settings.source:
    initial.check(settings.source)  # Finds mistakes before reading the data.
  data = open_data(
    settings.data,
    workers=config.workers,
    batch_size=config.batch_size,
    seed=config.seed,
  )
  data.dataset.check(data.assignment, config.eval.batch_size)
  with config_errors('data'):
    task = lookup(tasks.TASKS, data.dataset.task)
    task = task._replace(prepare=data.dataset.prepare)
  if DATASETS.is_own(data.dataset.name):
    with DATASETS.errors(data.dataset.name, 'data'):
      data = own.checked(data, _ids(data.dataset, task, config.model.name))
  per_epoch = data.assignment.steps_per_epoch
  steps = config.steps or _steps(config.epochs, per_epoch)
  learning_rate = _learning_rate(settings, per_epoch, steps)
  optimizer = settings.optimizer(learning_rate=learning_rate)
  skips = config.on_nonfinite == 'skip'
  if skips:
    optimizer = optimizers.if_finite(optimizer)
  model = settings.model(data.dataset.num_classes)
  with DATASETS.errors(data.dataset.name, 'data'):
    if task.inputs not in data.example:
      line = tasks.lacks(data.dataset.task, task.inputs, data.example)
      raise ConfigError(line)
    jax.eval_shape(task.read, data.example)  # So that it fails early.
  problem = Problem(
    task=task,
    model=model,
    data=data,
    optimizer=optimizer,
    learning_rate=learning_rate,
    peak_rate=settings.learning_rate,
    batch_size=config.batch_size,
    accumulate=config.accumulate,
    eval_batch_size=config.eval.batch_size,
    seed=config.seed,
    steps=steps,
    evaluate_every=max(1, round(config.eval.every_epochs * per_epoch)),
    max_skips=config.max_skips if skips else 0,
    source=settings.source,
    is_frozen=optimizers.is_frozen(settings.optimizer),
    code=settings.code_of(data.dataset.task),
  )
  _check(problem, config)
  return problem


def _ids(dataset: Dataset, task: tasks.Task, model: str) -> ids.Check:
  """Returns the check of the token ids in a batch."""
  inputs = [name for name in task.ids if name == task.inputs]
  targets = [name for name in task.ids if name not in inputs]
  bounded = tasks.TASKS.is_own(dataset.task) or not models.MODELS.is_own(model)
  # A user's model may read more ids than it scores; prepared ones may be any.
  if dataset.prepare is not unchanged or not bounded:
    inputs.clear()
  return ids.Check(tuple(targets), tuple(inputs), dataset.num_classes)


def _steps(epochs: float, per_epoch: int) -> int:
  steps = math.ceil(round(epochs * per_epoch, 6))  # 0.55 * 100 is over 55.
  if epochs * per_epoch < 0.5 or steps > 10**8:
    raise ConfigError(
      f'config.epochs={epochs!r}: an epoch has {per_epoch} steps, and a run '
      'must have from 1 to 10**8'
    )
  return steps


def _learning_rate(
  settings: Settings, per_epoch: int, steps: int
) -> optax.Schedule:
  """Makes the schedule, with milestones in steps."""
  schedule = settings.schedule
  if 'milestones' in schedule.arguments:
    epochs = schedule.arguments['milestones']
    schedule = schedule.changed(
      milestones=[round(epoch * per_epoch) for epoch in epochs]
    )
  return optimizers.with_warmup(
    schedule,
    settings.learning_rate,
    warmup_steps=round(settings.config.schedule.warmup_epochs * per_epoch),
    steps=steps,
  )


def _check(problem: Problem, config: Any) -> None:
  """Raises `ConfigError` if model, data and optimizer do not fit together."""
  data, task = problem.data, problem.data.dataset.task
  model = config.model.name
  with config_errors('model'), models.MODELS.errors(model, 'model'):
    shapes = problem.shapes  # The images may be too small for the model.
    params = shapes['params']
    outputs = tasks.check_model(
      *(problem.model, problem.task, shapes, data.example),
      data.dataset.num_classes,
    )
  with config_errors('data'), tasks.TASKS.errors(task, 'data'):
    try:
      names = tasks.check_metrics(problem.task, outputs, data.example)
    except KeyError as error:
      if error.args[0] in data.example:
        raise
      line = tasks.lacks(task, error.args[0], data.example)
      raise ConfigError(line) from error
    if taken := sorted(ledger.COLUMNS & set(names)):
      raise ValueError(
        f'task {task} has a metric {taken[0]!r}, which is a built-in column'
      )
  try:
    # Some optax optimizers need more than the mean gradient.
    state = jax.eval_shape(problem.optimizer.init, params)
    jax.eval_shape(problem.optimizer.update, params, state, params)
  except Exception as error:
    line = f'it cannot train this model: {user_errors.reason(error)[:200]}'
    raise ConfigError(f'config.optimizer: {line}') from error
