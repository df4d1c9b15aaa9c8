"""The trials of a task, the choice among them, and the table."""

import argparse
import itertools

import jax.numpy as jnp
import pytest

from benchmarks.quality import evidence, families, recipes, shaped
from benchmarks.quality.families import BSP, FAMILIES, TASKS
from selsync_jax.commands import config_file
from selsync_jax.methods import Context
from selsync_jax.report import comparison_table
from selsync_jax.runs import records
from selsync_jax.training.settings import check


def workload(name, folder):
  """A task in its quick form."""
  options = argparse.Namespace(quick=True, idx_dir=None, work=folder)
  return evidence.create_workload(name, options)


@pytest.mark.parametrize('count', [evidence.TRIALS, evidence.QUICK_TRIALS])
def test_every_family_has_as_many_trials(count):
  for settings in FAMILIES.values():
    rates = families.rates(count // len(settings))
    assert len(settings) * len(rates) == count


def test_bsp_has_every_rate(tmp_path):
  tried = workload('stdlib_gpt', tmp_path).family(BSP)
  for spec in FAMILIES[BSP]:
    rates = {recipe.rate for recipe in tried if recipe.spec == spec}
    assert len(rates) == len(families.RATES)


@pytest.mark.parametrize('name', TASKS)
def test_every_family_can_run_on_every_task(name, tmp_path):
  task = workload(name, tmp_path)
  for family in FAMILIES:
    for trial in task.family(family).values():
      strategy = check(trial.config).method(Context(100, trial.seed))
      strategy.averager.check(trial.config.workers)


@pytest.mark.parametrize('spec', FAMILIES[BSP])
def test_links_are_sized_by_a_step_of_bsps_optimizer_alone(spec, tmp_path):
  task = workload('stdlib_gpt', tmp_path)
  (bsp,) = task.list_trials(spec, families.rates(1), 50)
  file, *fields = shaped.alone(bsp)
  config = config_file.load(file.removeprefix('--config='), fields)
  assert config.optimizer == bsp.config.optimizer
  shared = {'params': {'w': jnp.zeros(8)}, 'model_state': {}}
  for each, sends_gradients in ((config, False), (bsp.config, True)):
    sends = check(each).method(Context(100, 50)).sends(shared, 4)
    assert any(one.at == 'step' for one in sends) == sends_gradients
  assert config.sync.period > config.steps


def finish(trial, validation, test, sent=100):
  """Leaves the files of a finished run with these perplexities."""
  totals = {
    **{'lssr': 0.5, 'samples': 1, 'bytes_per_worker': sent, 'seconds': 1.0},
    'samples_per_second': 1.0,
  }
  scores = {'validation_perplexity': validation, 'test_perplexity': test}
  scores |= {'validation_loss': 1.0, 'test_loss': 1.0}
  trial.workdir.mkdir(parents=True)
  records.write_config(trial.workdir, trial.config.to_dict())
  records.write(
    trial.workdir,
    records.DATA,
    {'labels': None, 'goal': {'main': 'perplexity', 'higher': []}},
  )
  with records.Rows(trial.workdir, 0) as file:
    file.write({'step': 60, **totals})
  records.write(
    trial.workdir,
    records.SUMMARY,
    {
      **{'method': 'any', 'workers': 4, 'steps': 60},
      **{'bytes_per_worker_bsp': 1000.0, **totals, **scores},
    },
  )


def test_validation_chooses_and_the_test_split_does_not(tmp_path):
  every = workload('stdlib_gpt', tmp_path).family('local SGD')
  low, high = itertools.islice(every, 2)
  tried = {low: every[low], high: every[high]}
  finish(tried[low], validation=5.0, test=9.0)
  finish(tried[high], validation=6.0, test=1.0)
  assert recipes.best(tried) == low


def test_a_recipe_is_tried_again_with_the_seeds_that_count(tmp_path):
  task = workload('stdlib_gpt', tmp_path)
  for recipe, trial in task.family('local SGD, late').items():
    for seed, again in enumerate(task.again(recipe, 3), recipes.SEEDS):
      assert again.label == trial.label and again.workdir != trial.workdir
      assert again.config.to_dict() == {**trial.config.to_dict(), 'seed': seed}


def test_a_recipe_that_tune_has_written_is_read_back(tmp_path):
  task = workload('stdlib_gpt', tmp_path)
  own = ['sync.period=20', 'sync.wire=int8', 'sync.delay=4', 'steps=30']
  flags = [*task.fields, *(f'--config.{field}' for field in own)]
  flags.append('--config.optimizer.learning_rate=0.02')
  (tmp_path / 'recipe.py').write_text(
    'from selsync_jax.commands import config_file\n\n\ndef get_config():\n'
    f'  return config_file.load("stdlib_gpt:local_sgd,smoke", {flags})\n'
  )
  recipe = task.recipe(f'{tmp_path}/recipe.py')
  assert recipe.rate == 0.02
  assert {*recipe.spec.split('+')} == {'local_sgd', *own}


def test_a_recipe_of_two_families_is_timed_once(tmp_path, monkeypatch):
  task = workload('stdlib_gpt', tmp_path)
  finals, found = {}, {}
  for name in ('local SGD', BSP, 'DiLoCo', 'MuLoCo'):
    finals[name] = task.again(next(iter(task.family(name))), 1)
    finish(finals[name][0], 5.0, 4.0, 1000 if name == BSP else 25)
  finals = {recipes.TUNE: finals['local SGD']} | finals
  for name, each in finals.items():
    (entry,) = comparison_table.read_entries(each)
    found[name] = evidence.Outcome(entry, {}, {})
  monkeypatch.setattr(
    shaped, 'measure', lambda bsp, trials, folder: {n: {10: n} for n in trials}
  )
  result = evidence.emulate(evidence.Result(1.0, found), finals, 2, tmp_path)
  assert {n: o.measured for n, o in result.found.items() if o.measured} == {
    recipes.TUNE: {10: recipes.TUNE},
    'local SGD': {10: recipes.TUNE},
    'DiLoCo': {10: 'DiLoCo'},
  }


def test_the_difference_to_bsp_is_in_percent_seed_by_seed(tmp_path):
  task = workload('stdlib_gpt', tmp_path)
  tests = {BSP: (4, 8, 5), 'local SGD': (4.04, 8.16, 5.15), 'FDA': None}
  found = {}
  for name, scores in tests.items():
    each = task.again(next(iter(task.family(name))), 3)
    for trial, score in zip(each, scores or (), strict=scores is not None):
      finish(trial, 5.0, score, 1000 if name == BSP else 25)
    (entry,) = comparison_table.read_entries(each)
    times = {t.seed: dict.fromkeys(evidence.SHOWN, 3.0) for t in each}
    found[name] = evidence.Outcome(entry, times, {})
  found[recipes.TUNE] = found['local SGD']
  _, _, bsp, ours, worst = evidence.table(found).splitlines()
  assert ' |  | 100.0% | 3.0 | 3.0 |' in bsp
  assert ours.startswith('| local SGD; found by `tune` |')
  assert ' +2.00 [-0.48, +4.48] | 2.5% | 3.0 | 3.0 |' in ours
  assert '(3 of 3 seeds diverged) | – |' in worst
