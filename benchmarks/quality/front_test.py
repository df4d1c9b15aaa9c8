"""The rows of the front's table, and its figure."""

import argparse

import pytest

from benchmarks.quality import evidence, front, recipes
from benchmarks.quality.evidence_test import finish
from benchmarks.quality.families import BSP
from selsync_jax.commands import flags
from selsync_jax.methods import Context
from selsync_jax.report import comparison_table
from selsync_jax.training.settings import check


def workload(task, folder):
  options = argparse.Namespace(quick=True, idx_dir=None, work=folder)
  return evidence.create_workload(task.name, options)


@pytest.mark.parametrize('task', front.TASKS.values(), ids=front.TASKS)
def test_every_row_has_as_many_trials_and_does_what_it_says(task, tmp_path):
  rates = [*map(flags.rate, front.RATES)]
  every = {
    row: [*workload(task, tmp_path).tried([spec], rates).values()]
    for row, spec in front.list_specs(task, front.FAMILIES).items()
  }
  assert {len(trials) for trials in every.values()} == {len(front.RATES)}
  for (family, setting), trials in every.items():
    strategy = check(trials[0].config).method(Context(100, 50))
    word, _, number = setting.partition(' ')
    if word in ('rank', 'density'):
      assert f'({number}' in str(strategy.reducer)
    elif word == 'one':
      k = setting.split()[2]
      wire = 'averager=mean(wire=int2())'
      assert f'fragments({k}, {wire}' in str(strategy.averager)
      assert strategy.trigger.traits.period == 1
    elif word:
      assert f'wire={family.split(", ")[1]}()' in str(strategy.averager)
      traits, often = strategy.trigger.traits, 1 / float(number)
      often = 1 - float(number) if word == 'LSSR' else often
      rates = [budget(None) for budget in traits.budgets] or [1 / traits.period]
      assert rates == pytest.approx([often], abs=0.005)


def test_rows_that_another_beats_clearly_are_not_trained_again(tmp_path):
  task = front.TASKS['text']
  made = {  # Validation and test perplexities, and bytes of BSP's thousand.
    (BSP, ''): (5.0, (5.0, 6.0, 7.0), 1000),
    ('local SGD, int2', 'period 5'): (5.3, None, 27),
    ('local SGD, int4', 'period 5'): (5.2, (5.05, 6.06, 7.07), 26),
    ('local SGD, int2', 'period 10'): (5.5, (5.5, 6.6, 7.7), 7),
  }
  specs, found = front.list_specs(task, front.FAMILIES), {}

  def entry(row, scores, first):
    recipe = recipes.Recipe(specs[row], 0.012)
    trials = workload(task, tmp_path).again(recipe, len(scores), first)
    for trial, score in zip(trials, scores, strict=True):
      finish(trial, made[row][0], score, made[row][2])
    (entry,) = comparison_table.read_entries(trials)
    return entry

  for row, (_, scores, _) in made.items():
    final = scores and entry(row, scores, front.FIRST_SEED)
    found[row] = front.Outcome(entry(row, [9.0], 50), final)
  again = {
    (BSP, ''),
    ('local SGD, int4', 'period 5'),
    ('local SGD, int2', 'period 10'),
  }
  assert front.contenders(found) == again
  _, _, bsp, beaten, kept, _ = front.table(found).splitlines()
  assert bsp.startswith('| BSP | 0.012 | 100.00% | 5 | 6.0 ± 1.0 |')
  assert beaten == '| local SGD, int2, period 5 | 0.012 | 2.70% | 5.3 |  |  |'
  assert '| +1.00, equal in 3 |' in kept
  plot = front.draw(found, 'text')
  (panel,) = plot.panels
  assert not plot.legend and panel.x.limits[0] < 0.7
  assert [name.text for name in panel.names] == [
    BSP,
    'local SGD, int2',
    'local SGD, int4',
  ]
