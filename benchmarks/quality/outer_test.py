"""The methods with an outer step, beside averages of the same bytes."""

import pytest

from benchmarks.quality.outer import LOCAL, STUDY
from benchmarks.quality.rules_test import tried
from benchmarks.quality.triggers_test import sent
from selsync_jax.methods import Context, METHODS
from selsync_jax.training.settings import check


@pytest.mark.parametrize('method', STUDY.rules)
def test_a_method_averages_gradients_or_sends_as_much_as_local_sgd(
  method, tmp_path
):
  (usual, *_) = tried(STUDY, 'text', LOCAL, tmp_path).values()
  for trial in tried(STUDY, 'text', method, tmp_path).values():
    reducer = check(trial.config).method(Context(100, trial.seed)).reducer
    assert reducer.traits.every_step == method.startswith('BSP')
    if not reducer.traits.every_step:
      assert 0.8 < sent(trial) / sent(usual) < 1.06


@pytest.mark.parametrize(
  'many, one, optimizer',
  [
    ('DiLoCo', 'BSP, outer step (K = 1)', 'adamw'),
    ('MuLoCo', 'BSP, Muon, outer step (K = 1)', 'muon'),
  ],
)
def test_one_worker_takes_the_same_steps(many, one, optimizer, tmp_path):
  rows = [tried(STUDY, 'text', name, tmp_path).values() for name in (many, one)]
  for pair in zip(*rows, strict=True):
    several, alone = (trial.config.to_dict() for trial in pair)
    for field in ('outer', 'period'):
      assert several['sync'][field] == alone['sync'][field]
    assert several['optimizer'] == alone['optimizer']
    assert alone['optimizer']['name'] == optimizer


def test_moments_are_averaged_as_often_as_in_des_loc(tmp_path):
  trial, _ = tried(STUDY, 'text', 'DES-LOC', tmp_path).values()
  context = Context(100, trial.seed)
  preset = METHODS['des_loc'](context, period=trial.config.sync.period)
  periods = [
    strategy.optimizer_state.recipe.arguments.arguments['every']
    for strategy in (check(trial.config).method(context), preset)
  ]
  assert periods[0] == periods[1]
