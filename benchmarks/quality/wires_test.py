"""The rows of the wires' table, and its front."""

import argparse

import pytest

from benchmarks.quality import evidence, recipes, wires
from benchmarks.quality.evidence_test import finish
from benchmarks.quality.families import BSP
from selsync_jax.commands import flags
from selsync_jax.methods import Context
from selsync_jax.report import comparison_table
from selsync_jax.training.settings import check


def workload(task, folder):
  options = argparse.Namespace(quick=True, idx_dir=None, work=folder)
  return evidence.create_workload(task.name, options)


@pytest.mark.parametrize('task', wires.TASKS.values(), ids=wires.TASKS)
def test_every_row_has_as_many_trials_on_its_own_wire(task, tmp_path):
  specs = wires.list_specs(task, wires.WIRES)
  rates = [*map(flags.rate, wires.RATES)]
  every = {
    row: [*workload(task, tmp_path).tried([spec], rates).values()]
    for row, spec in specs.items()
  }
  assert {len(trials) for trials in every.values()} == {len(wires.RATES)}
  for (wire, period), trials in every.items():
    strategy = check(trials[0].config).method(Context(100, 50))
    if wire != BSP:
      assert f'(wire={wire}())' in str(strategy.averager)
      assert strategy.trigger.traits.period == period


def test_rows_that_another_beats_clearly_are_not_trained_again(tmp_path):
  task = wires.TASKS['text']
  made = {  # Validation and test perplexities, and bytes of BSP's thousand.
    (BSP, 1): (5.0, (5.0, 6.0, 7.0), 1000),
    ('int2', 5): (5.3, None, 27),
    ('int4', 5): (5.2, (5.05, 6.06, 7.07), 26),
    ('int2', 10): (5.5, (5.5, 6.6, 7.7), 7),
  }
  specs, found = wires.list_specs(task, wires.WIRES), {}

  def entry(row, scores, first):
    recipe = recipes.Recipe(specs[row], 0.012)
    trials = workload(task, tmp_path).again(recipe, len(scores), first)
    for trial, score in zip(trials, scores, strict=True):
      finish(trial, made[row][0], score, made[row][2])
    (entry,) = comparison_table.read_entries(trials)
    return entry

  for row, (_, scores, _) in made.items():
    final = scores and entry(row, scores, wires.FIRST_SEED)
    found[row] = wires.Outcome(entry(row, [9.0], 50), final)
  again = {(BSP, 1), ('int4', 5), ('int2', 10)}
  assert wires.contenders(found) == again
  _, _, bsp, beaten, kept, _ = wires.table(found).splitlines()
  assert bsp.startswith('| BSP | 0.012 | 100.00% | 5 | 6.0 ± 1.0 |')
  assert beaten == '| `int2`, 5 | 0.012 | 2.70% | 5.3 |  |  |'
  assert '| +1.00, equal in 3 |' in kept
  plot = wires.draw(found, 'text')
  (panel,) = plot.panels
  assert not plot.legend and panel.x.limits[0] < 0.7
  assert [name.text for name in panel.names] == [BSP, 'int2', 'int4']
