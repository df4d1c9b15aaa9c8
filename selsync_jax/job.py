"""A config made concrete: data, model, method and optimizer of one run."""

import math
from typing import NamedTuple

import flax.linen as nn
import ml_collections
import numpy as np
import optax

from selsync_jax import config as config_lib
from selsync_jax import datasets
from selsync_jax import models
from selsync_jax import optimizers
from selsync_jax import partition as partition_lib
from selsync_jax import strategies
from selsync_jax import tasks
from selsync_jax.config import blame
from selsync_jax.strategies import parts


class Job(NamedTuple):
  """One run: all that could be refused has been accepted.

  Attributes:
    task: what the model is trained for.
    model: the flax module.
    train: examples to train on.
    validation: examples to choose by, scored at the end.
    test: examples to score the consensus on.
    partition: who reads which of the training examples.
    steps: optimizer steps of the whole run.
    steps_per_epoch: of one data set's worth of examples over all workers.
    strategy: when workers talk, and what happens then.
    tx: the optax chain: trigger, reducer, optimizer.
    learning_rate: as a function of the optimizer step.
  """

  task: tasks.Task
  model: nn.Module
  train: datasets.Examples
  validation: datasets.Examples
  test: datasets.Examples
  partition: partition_lib.Partition
  steps: int
  steps_per_epoch: int
  strategy: parts.Strategy
  tx: optax.GradientTransformation
  learning_rate: optax.Schedule


def prepare(config: ml_collections.ConfigDict) -> Job:
  """Data, model, method and optimizer of a config, before any device work.

  Raises:
    ConfigError: for the first field whose value breaks its rule.
  """
  config_lib.check(config)
  with blame('data.name'):
    source = datasets.create(config.data.name)
  with blame('model'):
    model = models.create(classes=source.classes, **config.model)
  train = datasets.load(source, 'train', config.data.dir)
  validation = datasets.load(source, 'validation', config.data.dir)
  test = datasets.load(source, 'test', config.data.dir)
  with blame('data.partition'):
    partition = partition_lib.create(
      config.data.partition,
      len(train['label']),
      config.workers,
      config.batch_size,
      config.seed,
    )
  per_epoch = partition_lib.steps_per_epoch(partition, config.batch_size)
  steps = config.steps or math.ceil(config.epochs * per_epoch)
  options = dict(config.optimizer)
  with blame('schedule'):
    learning_rate = optimizers.schedule(
      config.schedule.name,
      options.pop('learning_rate'),
      warmup_steps=round(config.schedule.warmup_epochs * per_epoch),
      steps=steps,
    )
  with blame('optimizer'):
    optimizer = optimizers.create(learning_rate=learning_rate, **options)
  if config.on_nonfinite == 'skip':
    optimizer = optax.apply_if_finite(optimizer, np.iinfo(np.int32).max)
  with blame('sync'):
    run = strategies.Run(per_epoch, config.seed)
    strategy = strategies.create(run=run, **config.sync)
  return Job(
    task=tasks.TASKS[source.task],
    model=model,
    train=train,
    validation=validation,
    test=test,
    partition=partition,
    steps=steps,
    steps_per_epoch=per_epoch,
    strategy=strategy,
    tx=optax.chain(strategy.trigger, strategy.reducer, optimizer),
    learning_rate=learning_rate,
  )
