"""Scores of the consensus: the workers' mean parameters and statistics.

During a run only the validation split is scored: checkpoints, learning rates
and methods are chosen by it. The test split is scored once, after the last
step.
"""

from collections.abc import Iterator
import contextlib
import functools
import pathlib
import sys
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from selsync_jax.config import RunError
from selsync_jax.devices import arrays, mappers
from selsync_jax.models import tasks
from selsync_jax.runs import checkpoints, files, fingerprint, weights
from selsync_jax.sync.consensus import AXIS, consensus
from selsync_jax.training import start
from selsync_jax.training.participants import Participants
from selsync_jax.training.problem import create_problem, Problem
from selsync_jax.training.settings import recorded


def _means(sums: tuple[Any, Any]) -> Any:
  """Returns the means over all workers, from sums and their count."""
  sums, count = lax.psum(sums, AXIS)
  return jax.tree.map(lambda total: total / count, sums)


class Evaluator:
  """Evaluates the consensus of the workers on a split of the data.

  Batch statistics are averaged with the parameters, or else estimated for the
  consensus each time.
  """

  def __init__(
    self,
    problem: Problem,
    participants: Participants,
    averages_model_state: bool = True,
  ):
    self._problem, self._participants = problem, participants
    mapper = participants.mapper
    self._averages_model_state = averages_model_state

    def mean(shared):
      # The mean of equal values may differ from them in the last bit.
      frozen, params = problem.frozen, shared['params']
      found = consensus(shared | {'params': frozen.rest(params)})
      return found | {'params': frozen.put_rest(params, found['params'])}

    self._consensus = mapper.map_workers(mean)

    def map_alone(fn):
      return mapper.map_workers(mapper.alone(fn))

    parts = problem.model, problem.task
    self._sums = map_alone(tasks.eval_metric_sums(*parts))
    self._statistics = map_alone(tasks.batch_statistics(*parts))
    self._means = mapper.map_workers(_means)
    self._metrics = functools.partial(tasks.dataset_metrics, problem.task)

  def consensus(self, shared: dict[str, Any]) -> dict[str, Any]:
    """Returns the workers' mean of `{'params', 'model_state'}`, stacked."""
    mean = self._consensus(shared)
    if not self._averages_model_state and mean['model_state']:
      mean |= {'model_state': self._recomputed(mean)}
    return mean

  def warm_up(self, shared: dict[str, Any]) -> None:
    """Compiles the functions that `consensus` and `scores` call."""
    mean = self._consensus(shared)
    params, model_state = mean['params'], mean['model_state']

    def first(split):
      return self._participants.divide(
        lambda workers, count: next(self._batches(split, workers, count))
      )

    if not self._averages_model_state and model_state:
      self._means(self._statistics(params, model_state, first('train')))
    sums = self._sums(params, model_state, first('validation'))
    local = jax.tree.map(lambda x: np.sum(arrays.local_values(x)), sums)
    self._metrics(local)

  def scores(self, mean: dict[str, Any], split: str) -> dict[str, float]:
    """Returns the metrics on `validation` or `test`, as `SPLIT_METRIC`."""
    params, model_state = mean['params'], mean['model_state']

    def sums(*share):
      each = [
        jax.tree.map(
          arrays.local_values, self._sums(params, model_state, batch)
        )
        for batch in self._batches(split, *share)
      ]
      own = jax.tree.map(lambda *x: np.sum(x, axis=0), *each)
      return self._participants.mapper.gather(own)

    total = jax.tree.map(np.sum, self._participants.divide(sums))
    scores = self._metrics(total)
    return {f'{split}_{name}': score for name, score in scores.items()}

  def _batches(self, split: str, workers: range, count: int) -> Iterator[Any]:
    """Yields the batches of a split for some of `count` workers."""
    return self._problem.data.evaluation(
      split, self._problem.eval_batch_size, workers, count
    )

  def _recomputed(self, mean: dict[str, Any]) -> Any:
    """Returns batch statistics of the mean over the training data."""
    params, model_state = mean['params'], mean['model_state']

    def means(*share):
      each = (
        self._statistics(params, model_state, batch)
        for batch in self._batches('train', *share)
      )
      sums = functools.reduce(functools.partial(jax.tree.map, jnp.add), each)
      return self._means(sums)

    return self._participants.divide(means)


def evaluate(
  workdir: pathlib.Path,
  step: int | str,
  split: str,
  accept_changes: bool = False,
) -> tuple[int, dict[str, float]]:
  """Returns the step of a run's weights, and their scores on a split.

  See `weights.read` for the step and the errors. The run is only read, and one
  device suffices. Data or model must not have changed, unless that is accepted.
  """
  found = weights.read(workdir, step)
  settings = recorded(workdir)._replace(source=None, method=None)
  with contextlib.suppress(RunError):  # Only a resized run needs the record.
    settings = start.adapt(settings, checkpoints.peek_record(workdir))
  problem, alone = create_problem(settings), mappers.Vmap(1)
  try:
    fingerprint.check(workdir, problem.fingerprint, accept_changes)
  except files.DamagedFile as error:
    print(f'{error}; data and model are not compared', file=sys.stderr)
  evaluator = Evaluator(problem, Participants(alone))
  params, model_state = tasks.split(found.variables)
  mean = {'params': params, 'model_state': model_state}
  return found.step, evaluator.scores(alone.stack(mean), split)
