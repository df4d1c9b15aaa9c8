"""Scores of the consensus: the workers' mean parameters and statistics."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from selsync_jax.devices import arrays
from selsync_jax.devices.mappers import map_workers
from selsync_jax.models import tasks
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.consensus import consensus
from selsync_jax.training.experiment import Experiment


def _means(sums: tuple[Any, Any]) -> Any:
  """The means over all workers of sums and their count."""
  sums, count = lax.psum(sums, AXIS)
  return jax.tree.map(lambda total: total / count, sums)


class Evaluator:
  """Evaluates the consensus of the workers on splits of the data.

  Args:
    experiment: whose model, task and data.
    workers: indices of this process's workers.
  """

  def __init__(self, experiment: Experiment, workers: range):
    self._experiment, self._workers = experiment, workers
    self._consensus = map_workers(consensus, experiment.mapper)
    self._sums = map_workers(
      tasks.eval_metric_sums(experiment.model, experiment.task),
      experiment.mapper,
    )
    self._statistics = map_workers(
      tasks.batch_statistics(experiment.model, experiment.task),
      experiment.mapper,
    )
    self._means = map_workers(_means, experiment.mapper)

  def scores(
    self, shared: dict[str, Any], splits: Sequence[str]
  ) -> dict[str, float]:
    """The metrics on each split, as `SPLIT_METRIC`.

    Args:
      shared: `{'params', 'model_state'}`, worker-stacked.
      splits: of the data.
    """
    mean = self._consensus(shared)
    if not self._experiment.strategy.averages_model_state:
      mean |= {'model_state': self._recomputed(mean)}
    return {
      f'{split}_{name}': score
      for split in splits
      for name, score in self._split_scores(mean, split).items()
    }

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
