"""Scores of the consensus: the workers' mean parameters and statistics.

While a run goes on, only the validation split is scored: checkpoints, learning
rates and methods are chosen by it. The test split is scored once, after the
last step.
"""

import contextlib
import dataclasses
import pathlib
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import ml_collections
import numpy as np

from selsync_jax.config import RunError
from selsync_jax.devices import arrays
from selsync_jax.devices import mappers
from selsync_jax.models import tasks
from selsync_jax.runs import checkpoints
from selsync_jax.runs import records
from selsync_jax.runs import weights
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.consensus import consensus
from selsync_jax.training import resize
from selsync_jax.training.experiment import create_experiment
from selsync_jax.training.experiment import Experiment


def _means(sums: tuple[Any, Any]) -> Any:
  """The means over all workers of sums and their count."""
  sums, count = lax.psum(sums, AXIS)
  return jax.tree.map(lambda total: total / count, sums)


class Evaluator:
  """Evaluates the consensus of the workers on a split of the data.

  Args:
    experiment: whose model, task and data.
    workers: indices of this process's workers.
  """

  def __init__(self, experiment: Experiment, workers: range):
    self._experiment, self._workers = experiment, workers
    mapper = experiment.mapper
    self._consensus = mapper.map_workers(consensus)

    def map_alone(fn):
      return mapper.map_workers(mapper.alone(fn))

    parts = experiment.model, experiment.task
    self._sums = map_alone(tasks.eval_metric_sums(*parts))
    self._statistics = map_alone(tasks.batch_statistics(*parts))
    self._means = mapper.map_workers(_means)

  def consensus(self, shared: dict[str, Any]) -> dict[str, Any]:
    """What is evaluated, from `{'params', 'model_state'}`, worker-stacked."""
    mean = self._consensus(shared)
    if not self._experiment.strategy.averages_model_state:
      mean |= {'model_state': self._recomputed(mean)}
    return mean

  def scores(self, mean: dict[str, Any], split: str) -> dict[str, float]:
    """The metrics on a split, as `SPLIT_METRIC`.

    Args:
      mean: the consensus, worker-stacked.
      split: of the data, `validation` or `test`.
    """
    scores = self._split_scores(mean, split)
    return {f'{split}_{name}': score for name, score in scores.items()}

  def _recomputed(self, mean: dict[str, Any]) -> Any:
    """Batch statistics of the mean parameters over the training data."""
    experiment = self._experiment
    sums = None
    for batch in experiment.data.evaluation(
      'train', experiment.eval_batch_size, self._workers, experiment.workers
    ):
      of_batch = self._statistics(mean['params'], mean['model_state'], batch)
      sums = of_batch if sums is None else jax.tree.map(jnp.add, sums, of_batch)
    return self._means(sums)

  def _split_scores(self, mean, split) -> dict[str, float]:
    experiment = self._experiment
    batches = experiment.data.evaluation(
      split, experiment.eval_batch_size, self._workers, experiment.workers
    )
    each = [
      jax.tree.map(
        arrays.local_values,
        self._sums(mean['params'], mean['model_state'], batch),
      )
      for batch in batches
    ]
    sums = arrays.gather(
      jax.tree.map(lambda *x: np.sum(x, axis=0), *each), experiment.workers
    )
    return tasks.dataset_metrics(experiment.task, jax.tree.map(np.sum, sums))


def evaluate(
  workdir: pathlib.Path, step: int | str, split: str
) -> tuple[int, dict[str, float]]:
  """Scores the weights of a run on one device.

  Args:
    workdir: of the run, finished or not; it is only read.
    step: see `weights.read`.
    split: of its data, `validation` or `test`.

  Returns:
    The step, and the metrics as `SPLIT_METRIC`.

  Raises:
    ConfigError: if there is no such run, it has no weights at this step, or its
      data are not there.
    RunError: if the weights are damaged.
  """
  found = weights.read(workdir, step)
  config = ml_collections.ConfigDict(records.read_config(workdir))
  config.sync = ml_collections.ConfigDict({'method': 'bsp'})  # None is needed.
  with contextlib.suppress(RunError):  # Only a resized run needs the record.
    config = resize.fit(config, checkpoints.peek_record(workdir))
  experiment = dataclasses.replace(
    create_experiment(config), workers=1, mapper=mappers.Vmap(1)
  )
  params, model_state = tasks.split(found.variables)
  mean = {'params': params, 'model_state': model_state}
  evaluator = Evaluator(experiment, range(1))
  return found.step, evaluator.scores(experiment.mapper.stack(mean), split)
