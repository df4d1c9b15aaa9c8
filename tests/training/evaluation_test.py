"""Scores of the consensus."""

import jax
import numpy as np
import pytest

from selsync_jax.config import ConfigError
from selsync_jax.devices import mappers
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.participants import Participants
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from tests.support import short_runs


def experiment(model_state, wire='float32', groups=()):
  """A setup for `config.sync.model_state` and a few fields."""
  fields = {'sync__model_state': model_state, 'sync__wire': {'name': wire}}
  config = short_runs.config(
    'local_sgd', workers=3, model__name='normalized', **fields
  )
  config.optimizer.groups = groups
  return create_setup(check(config))


def test_a_wire_that_withholds_changes_averages_no_batch_statistics():
  experiment('recompute', 'sparse')
  with pytest.raises(ConfigError, match="model_state='mean': mean"):
    experiment('mean', 'sparse')
  experiment('mean', 'int2')


def test_recomputed_statistics_do_not_depend_on_the_workers_statistics():
  run = experiment('recompute')
  shared = mappers.Vmap(3).stack(run.init({}).shared)
  other = dict(
    shared, model_state=jax.tree.map(lambda x: x + 9, shared['model_state'])
  )

  def scores(run, tree):
    averages = run.strategy.averages_model_state
    evaluator = Evaluator(run.problem, Participants(run.mapper), averages)
    return evaluator.scores(evaluator.consensus(tree), 'validation')

  one, two = scores(run, shared), scores(run, other)
  assert one == pytest.approx(two, rel=1e-5)
  kept = scores(experiment('mean'), shared)
  assert kept['validation_loss'] != pytest.approx(one['validation_loss'])


def test_recomputed_statistics_are_not_sent():
  shared = experiment('mean').shapes.shared
  nbytes = 4 * sum(np.prod(x.shape) for x in jax.tree.leaves(shared))
  statistics = 4 * 2 * 8
  ring = 2 * (3 - 1) / 3
  assert experiment('mean').traffic.sync == pytest.approx(ring * nbytes)
  assert experiment('recompute').traffic.sync == pytest.approx(
    ring * (nbytes - statistics)
  )


def test_frozen_parameters_are_neither_sent_nor_rounded():
  frozen = {'parameters': 'params/Dense_0', 'scale': 0.0}
  setup, plain = experiment('mean', groups=(frozen,)), experiment('mean')
  assert setup.problem.frozen.names == ('Dense_0/bias', 'Dense_0/kernel')
  ring = 2 * (3 - 1) / 3
  sent = setup.traffic.sync, plain.traffic.sync
  assert sent[1] - sent[0] == pytest.approx(ring * 4 * (8 + 64 * 8))
  shared = mappers.Vmap(3).stack(setup.init({}).scored)
  evaluator = Evaluator(setup.problem, Participants(setup.mapper))
  mean = evaluator.consensus(shared)['params']['Dense_0']
  jax.tree.map(np.testing.assert_array_equal, mean, shared['params']['Dense_0'])
