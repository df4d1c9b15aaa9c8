"""A study: rules of communication on some tasks, each with as many trials.

Each rule has one setting or more, which share its trials: with one seed, a
setting is tried at the first learning rates of `RATES`. The best trial on
validation is trained with other seeds, and only then does the test split count.
"""

import argparse
from collections.abc import Mapping
import itertools
from typing import Any, NamedTuple

from benchmarks.quality import recipes, runs
from benchmarks.quality.recipes import Recipe, TUNING_SEED, Workload
from benchmarks.table import markdown
from selsync_jax.commands import flags
from selsync_jax.report import comparison_table, significance
from selsync_jax.report.comparison_table import Entry
from selsync_jax.runs.history import Trial

RATES = '1x', '2x', '4x', '0.5x', '3x', '8x', '0.25x', '1.5x'
"""Learning rates, as in `compare`, the most likely ones first."""


class Task(NamedTuple):
  """A task to train.

  Attributes:
    config: the name of a config, with its variant.
    title: the task's title, for a heading.
    fields: config fields that shorten the run.
  """

  config: str
  title: str
  fields: Mapping[str, Any]


class Outcome(NamedTuple):
  """The final runs of a rule."""

  setting: str  # Its name in the study.
  entry: Entry


class Study(NamedTuple):
  """A benchmark that compares rules.

  Attributes:
    name: the benchmark's name.
    noun: the word for a rule, in the table and the caption.
    rules: the settings of each rule, as in `compare`, by their names in the
      table.
    tasks: the tasks by name.
    baselines: the rules that the others are compared to; always trained.
    trials: the number of trials of each rule.
    seed: the first seed of the final runs.
  """

  name: str
  noun: str
  rules: Mapping[str, Mapping[str, str]]
  tasks: Mapping[str, Task]
  baselines: tuple[str, ...]
  trials: int
  seed: int

  def parser(self, about: str) -> argparse.ArgumentParser:
    """The parser of the benchmark's command line."""
    parser = runs.parser(about, self.name, tasks=self.tasks)
    parser.add_argument(
      '--only',
      nargs='+',
      default=[*self.rules],
      choices=self.rules,
      help=f'{self.noun}s to train besides the baselines',
    )
    parser.set_defaults(idx_dir=None)
    return parser

  def run(self, options: argparse.Namespace) -> None:
    """Measures the tasks, and reports them."""
    runs.report_tasks(
      self.name, options, lambda task: self.section(task, options)
    )

  def section(self, task: str, options: argparse.Namespace) -> runs.Section:
    """Measures a task; returns its part of the page, and the record."""
    found = self.measure(self.workload(task, options), options)
    record = {
      rule: {
        'setting': setting,
        'method': entry.label,
        'learning_rate': entry.learning_rate,
        'diverged': entry.diverged,
        'outcomes': {seed: run.outcome for seed, run in entry.runs.items()},
      }
      for rule, (setting, entry) in found.items()
    }
    text = self.text(found, task, options)
    return runs.Section(self.tasks[task].title, text, record)

  def workload(self, task: str, options: argparse.Namespace) -> Workload:
    """The workload of a task."""
    config, _, fields = self.tasks[task]
    folder = options.work / task
    return Workload.create(config, fields, self.trials, folder, options.idx_dir)

  def tried(self, workload: Workload, rule: str) -> dict[Recipe, Trial]:
    """The trials of a rule: its settings at some learning rates."""
    specs = self.rules[rule].values()
    rates = RATES[: self.trials // len(specs)]
    return workload.tried(specs, [*map(flags.rate, rates)])

  def measure(
    self, workload: Workload, options: argparse.Namespace
  ) -> dict[str, Outcome]:
    """The outcome of every rule, the best on validation first."""
    names = dict.fromkeys([*self.baselines, *options.only])
    chosen = recipes.choose(
      {name: self.tried(workload, name) for name in names}, options.jobs
    )
    finals = recipes.retrain(
      workload, chosen, options.seeds, options.jobs, self.seed
    )
    found = {}
    for name, each in finals.items():
      settings = {spec: setting for setting, spec in self.rules[name].items()}
      (entry,) = comparison_table.read_entries(each)
      found[name] = Outcome(settings[chosen[name].spec], entry)
    order = sorted(found, key=lambda name: found[name].entry.rank, reverse=True)
    return {name: found[name] for name in order}

  def text(
    self, found: Mapping[str, Outcome], task: str, options: argparse.Namespace
  ) -> str:
    """The page's section about a task: the training, and the table."""
    run = next(iter(found[self.baselines[0]].entry.runs.values()))
    seeds, only = options.seeds, runs.only(options.only, [*self.rules])
    return (
      f'`python -m benchmarks.quality.{self.name} --tasks {task}{only} '
      f'--seeds={seeds}`: {run.config["workers"]} workers, '
      f'{run.outcome["steps"]:,} steps, {self.trials} trials of each '
      f'{self.noun} with seed {TUNING_SEED}, final runs with seeds {self.seed} '
      f'to {self.seed + seeds - 1}. The 95% intervals are not corrected for '
      f'the number of {self.noun}s.\n\n{self.table(found)}'
    )

  def table(self, found: Mapping[str, Outcome]) -> str:
    """The table of a task, in Markdown."""
    entries = [outcome.entry for outcome in found.values()]
    field = f'test_{comparison_table.metric_of(entries)}'
    head = [
      *(self.noun, 'best setting, learning rate', field.replace('_', ' ')),
      *(f'above {name}, %' for name in self.baselines),
      *("of BSP's bytes", 'gaps'),
    ]
    lines = [head, ['---', '---', *['---:'] * (len(head) - 2)]]
    values = [[*entry.values(field).values()] for entry in entries]
    form = significance.column_form(values, '.4f')
    against = {k: found[k].entry.values(field) for k in self.baselines}
    for name, (setting, entry) in found.items():
      shown = ', '.join(filter(None, [setting, f'{entry.learning_rate:g}']))
      if entry.diverged:
        shown += f' ({len(entry.diverged)} seeds diverged)'
      cells = ['–'] * (len(head) - 2)
      if entry.runs:
        scores = entry.values(field)
        cells = [
          significance.spread([*scores.values()], form).text,
          *('' if k == name else _above(scores, v) for k, v in against.items()),
          f'{entry.mean("of_bsp"):.1%}',
          _gaps(entry),
        ]
      lines.append([name, shown, *cells])
    return markdown(lines)


def _above(scores: Mapping[int, float], others: Mapping[int, float]) -> str:
  return significance.excess(scores, others).cell('+z.2f').text


def _gaps(entry: Entry) -> str:
  """The shortest and the longest gap between averages, over all seeds."""
  gaps = set()
  for run in entry.runs.values():
    steps = [row['step'] for row in run.rows if row.get('synced')]
    gaps |= {b - a for a, b in itertools.pairwise(steps)}
  ends = [min(gaps), max(gaps)] if gaps else ['–']
  return ' to '.join(map(str, dict.fromkeys(ends)))
