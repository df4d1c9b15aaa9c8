"""The trials of every study's rules, and the table."""

import argparse

import pytest

from benchmarks.quality import outer, triggers
from benchmarks.quality.evidence_test import finish
from benchmarks.quality.rules import Outcome, Study, Task
from selsync_jax.methods import Context
from selsync_jax.report import comparison_table
from selsync_jax.training.settings import check
from tests.support import own_code

STUDIES = triggers.STUDY, outer.STUDY


@pytest.fixture(autouse=True)
def forgotten():
  """Forgets methods that a task's config file registers."""
  with own_code.forgotten():
    yield


def workload(study, task, folder):
  """The workload of a task."""
  return study.workload(task, argparse.Namespace(idx_dir=None, work=folder))


def tried(study, task, rule, folder):
  """A trial of each setting of a rule, by its method, as in `compare`."""
  trials = study.tried(workload(study, task, folder), rule)
  return {recipe.spec: trial for recipe, trial in trials.items()}


@pytest.mark.parametrize(
  'study, rule',
  [(study, rule) for study in STUDIES for rule in study.rules],
  ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_every_rule_has_as_many_trials_on_every_task(study, rule, tmp_path):
  for task in study.tasks:
    trials = study.tried(workload(study, task, tmp_path), rule)
    assert len({t.workdir for t in trials.values()}) == study.trials
    for trial in tried(study, task, rule, tmp_path).values():
      strategy = check(trial.config).method(Context(100, trial.seed))
      strategy.averager.check(trial.config.workers)


def test_the_folder_of_fashion_mnist_goes_to_the_tasks_that_read_it(tmp_path):
  options = argparse.Namespace(idx_dir='files', work=tmp_path)
  for task in triggers.TASKS:
    fields = triggers.STUDY.workload(task, options).fields
    reads = not task.startswith('text')
    assert ('--config.data.idx_dir=files' in fields) == reads


def test_differences_are_to_every_baseline_seed_by_seed(tmp_path):
  rules = {
    'BSP': {'': 'bsp'},
    'local SGD': {'often': 'local_sgd+sync.period=2'},
    'worse': {'seldom': 'local_sgd+sync.period=4'},
    'lost': {'never': 'local_sgd+sync.period=9'},
  }
  tasks = {'text': Task('stdlib_gpt:smoke', 'A model', {})}
  study = Study('any', 'method', rules, tasks, ('BSP', 'local SGD'), 2, 7)
  tests = {
    'BSP': (4, 8, 5),
    'local SGD': (2, 4, 2.5),
    'worse': (4.04, 8.16, 5.15),
    'lost': None,
  }
  found = {}
  for name, scores in tests.items():
    task = workload(study, 'text', tmp_path)
    trials = task.again(next(iter(study.tried(task, name))), 3, 7)
    for trial, score in zip(trials, scores or (), strict=scores is not None):
      finish(trial, 5.0, score, 1000 if name == 'BSP' else 25)
    (entry,) = comparison_table.read_entries(trials)
    found[name] = Outcome(*study.rules[name], entry)
  options = argparse.Namespace(seeds=3, only=[*study.rules])
  text = study.text(found, 'text', options)
  assert '2 trials of each method' in text and 'seeds 7 to 9' in text
  head, _, bsp, local, worse, lost = study.table(found).splitlines()
  assert ' | above BSP, % | above local SGD, % | ' in head
  assert bsp.startswith('| BSP | 0.012 | ') and ' |  | +100.00, equal' in bsp
  assert ' | -50.00, equal in 3 |  | 2.5% | – |' in local
  assert '| worse | seldom, 0.012 | ' in worse
  assert ' +2.00 [-0.48, +4.48] | +104.00 [' in worse
  assert '| lost | never, 0.012 (3 seeds diverged) | – | – |' in lost
