"""What does a percent of BSP's bytes cost? Some families of methods by bytes.

  python -m benchmarks.quality.front --tasks text --into=docs/evidence.md
  python -m benchmarks.quality.front --only 'partial, int2' --seeds=5

Trains a task with BSP, and with families of methods that send ever fewer bytes.
Each of these rows has two trials with one seed, at the config's learning rate
and at twice that rate; the better one on validation counts. It is trained with
other seeds unless a trial that sends no more is better by more than `MARGIN`.
Only then does the test split count.

Prints a table for each task, and draws the trials: the score over the bytes.
Writes front.json, WORK/plots/front-TASK.png (`python docs/pictures.py WORK
front-TASK` copies it into the docs) and, with --into, the tables into a page,
between `<!-- front_TASK: ... -->` and `<!-- /front_TASK -->`. Finished runs are
not repeated.
"""

import argparse
from collections.abc import Container, Mapping
from typing import NamedTuple

from benchmarks.quality import evidence, families, recipes, runs
from benchmarks.quality.families import BSP
from benchmarks.quality.recipes import TUNING_SEED, Workload
from benchmarks.table import markdown
from selsync_jax.commands import flags
from selsync_jax.report import (
  comparison_table,
  figure,
  image_files,
  significance,
)
from selsync_jax.report.comparison_table import Entry

RATES = '1x', '2x'
FIRST_SEED = 100
MARGIN = 0.01
"""About the deviation of a score over seeds, relative to it."""
SHOWN = 0.1
"""The largest difference to BSP in the figure, relative to BSP."""


class Task(NamedTuple):
  """A task to train.

  Attributes:
    name: its name in `families.TASKS`; the quick form is trained.
    baseline: BSP, as in `compare`, with the optimizer of the others.
    local: local SGD.
    outer: local SGD with an outer step.
    gaps: mean numbers of steps from one average to the next.
    more: local SGD of the task's own families, by their names.
  """

  name: str
  baseline: str
  local: str
  outer: str
  gaps: tuple[int, ...] = (5, 7, 10, 14)
  more: Mapping[str, str] = {}

  @property
  def title(self) -> str:
    """The task's title, for a heading."""
    return families.TASKS[self.name].title

  def families(self) -> dict[str, dict[str, str]]:
    """The settings of each family, as in `compare`, by their names."""
    periods = {f'period {k}': f'+sync.period={k}' for k in self.gaps}
    parts = {
      f'one of {k} parts': f'+sync.averager=fragments+sync.averager.k={k}'
      for k in self.gaps
      if k > 1
    }
    budgets = {f'LSSR {1 - 1 / k:.2f}': _budget(k) for k in self.gaps if k > 1}
    ranks = {f'rank {r}': f'power_sgd+sync.reducer.rank={r}' for r in (1, 2, 4)}
    densities = {
      f'density {d}': f'top_k+sync.reducer.density={d}'
      for d in (0.03, 0.01, 0.003)
    }
    given = {
      'local SGD, int4': (f'{self.local}+sync.wire=int4', periods),
      'local SGD, int2': (f'{self.local}+sync.wire=int2', periods),
      'partial, int2': (f'{self.local}+sync.wire=int2+sync.period=1', parts),
      'SelSync, int2': (f'{self.local}+sync.wire=int2', budgets),
      'DiLoCo, int2': (f'{self.outer}{families.STEP}+sync.wire=int2', periods),
      'PowerSGD': (f'{self.baseline}+sync.reducer=', ranks),
      'top-k gradients': (f'{self.baseline}+sync.reducer=', densities),
    } | {name: (method, periods) for name, method in self.more.items()}
    return {
      name: {setting: method + own for setting, own in settings.items()}
      for name, (method, settings) in given.items()
    }


def _budget(gap: int) -> str:
  """SelSync's trigger with a budget, and gaps up to twice the mean."""
  trigger = '+sync.trigger'
  return (
    f'{trigger}=any_of{trigger}.a=budgeted{trigger}.a.lssr={1 - 1 / gap:.4f}'
    f'{trigger}.a.trigger=selsync{trigger}.a.trigger.delta=1.0'
    f'{trigger}.b=max_interval{trigger}.b.k={2 * gap}'
  )


TASKS = {
  'text': Task('stdlib_gpt', 'bsp', 'local_sgd', 'diloco'),
  'pictures': Task(
    'fashion_mnist', families.FAMILIES[BSP][1], families.MUON, 'muloco'
  ),
  'one_label': Task(
    'fashion_mnist_one_label',
    'bsp',
    'local_sgd',
    'diloco',
    (1, 2, 3, 5),
    {
      'local SGD, int4, injection': 'local_sgd+sync.wire=int4'
      '+data.injection.alpha=0.5+data.injection.beta=0.5'
    },
  ),
}

FAMILIES = [
  *dict.fromkeys(name for task in TASKS.values() for name in task.families())
]
"""The names of the families."""

Row = tuple[str, str]
"""A family and its setting; `(BSP, '')` for BSP."""


def list_specs(task: Task, only: Container[str]) -> dict[Row, str]:
  """Returns the method of BSP and of some families' rows, as in `compare`."""
  return {(BSP, ''): task.baseline} | {
    (family, setting): spec
    for family, settings in task.families().items()
    for setting, spec in settings.items()
    if family in only
  }


class Outcome(NamedTuple):
  """The better trial of a row, and its final runs, if it has any."""

  trial: Entry
  final: Entry | None = None


def measure(
  workload: Workload, task: Task, options: argparse.Namespace
) -> dict[Row, Outcome]:
  """Trains every row; returns the outcomes, the most bytes first."""
  rates = [*map(flags.rate, RATES)]
  tried = {
    row: workload.tried([spec], rates)
    for row, spec in list_specs(task, options.only).items()
  }
  chosen = recipes.choose(tried, options.jobs)
  found = {}
  for row, recipe in chosen.items():
    (trial,) = comparison_table.read_entries([tried[row][recipe]])
    found[row] = Outcome(trial)
  trained = {(BSP, ''), *contenders(found)}
  again = {row: chosen[row] for row in chosen if row in trained}
  finals = recipes.retrain(
    workload, again, options.seeds, options.jobs, FIRST_SEED
  )
  for row, each in finals.items():
    (entry,) = comparison_table.read_entries(each)
    found[row] = found[row]._replace(final=entry)
  return dict(sorted(found.items(), key=lambda item: -_sent(item[1])))


def _sent(outcome: Outcome) -> float:
  """Returns the share of BSP's bytes; 0 if the trial diverged."""
  return outcome.trial.mean('of_bsp') if outcome.trial.runs else 0


def _metric(found: Mapping[Row, Outcome]) -> str:
  return comparison_table.metric_of([found[BSP, ''].trial])


def contenders(found: Mapping[Row, Outcome]) -> set[Row]:
  """Returns the rows that no other beats by more than `MARGIN`, for no more."""
  field, (run,) = _metric(found), found[BSP, ''].trial.runs.values()
  sign = 1 if field in run.goal.higher else -1
  points = {
    row: (_sent(outcome), sign * outcome.trial.mean(f'validation_{field}'))
    for row, outcome in found.items()
    if outcome.trial.runs
  }
  return {
    row
    for row, (sent, score) in points.items()
    if not any(
      other <= sent and best - score > MARGIN * abs(score)
      for other, best in points.values()
    )
  }


def table(found: Mapping[Row, Outcome]) -> str:
  """The table of a task, in Markdown."""
  metric = _metric(found)
  head = ['method', 'rate', "of BSP's bytes"]
  head += [f'validation {metric}', f'test {metric}', 'above BSP, %']
  lines = [head, ['---', *['---:'] * (len(head) - 1)]]
  finals = {row: o.final for row, o in found.items() if o.final}
  scores = {row: e.values(f'test_{metric}') for row, e in finals.items()}
  form = significance.column_form(
    [[*s.values()] for s in scores.values()], '.4f'
  )
  for row, outcome in found.items():
    trial, cells = outcome.trial, ['–', '–']
    if trial.runs:
      validated = trial.mean(f'validation_{metric}')
      cells = [f'{_sent(outcome):.2%}', f'{validated:.4g}']
    if row in scores:
      above = significance.excess(scores[row], scores[BSP, '']).cell('+z.2f')
      cells.append(significance.spread([*scores[row].values()], form).text)
      cells.append('' if row[0] == BSP else above.text)
    cells += [''] * (4 - len(cells))
    lines.append([_label(*row), f'{trial.learning_rate:g}', *cells])
  return markdown(lines)


def _label(*row: str) -> str:
  return ', '.join(filter(None, row))


def draw(found: Mapping[Row, Outcome], name: str) -> figure.Plot:
  """The validation score of each family's trials over the share of bytes."""
  field, marks, names = _metric(found), [], []
  of_bsp = found[BSP, ''].trial.mean(f'validation_{field}')
  done = {
    row: outcome
    for row, outcome in found.items()
    if outcome.trial.runs
    and abs(outcome.trial.mean(f'validation_{field}') / of_bsp - 1) <= SHOWN
  }
  for i, family in enumerate(dict.fromkeys(family for family, _ in done)):
    each = [outcome for (of, _), outcome in done.items() if of == family]
    x = [100 * _sent(outcome) for outcome in each]
    y = [outcome.trial.mean(f'validation_{field}') for outcome in each]
    look = figure.series(i)._replace(dash=(), size=7)
    marks.append(figure.Line('', x, y, look))  # One name, so no legend.
    names.append(figure.Name(family, x[-1], y[-1], ''))
  x_axis = figure.Axis(
    limits=(0.1, 110), log=True, ticks=6, label="% of BSP's bytes"
  )
  panel = figure.Panel(
    f'validation {field}', x_axis, figure.Axis(ticks=6), marks, 300, names
  )
  about = f'One seed. Scores that differ from BSP by {SHOWN:.0%} are left out.'
  title = f'Score over bytes, {TASKS[name].title}'
  return figure.Plot(f'front-{name}', title, about, [panel])


def text(
  found: Mapping[Row, Outcome], name: str, options: argparse.Namespace
) -> str:
  """The page's section about a task: the training, the table, the figure."""
  (run,) = found[BSP, ''].trial.runs.values()
  title, seeds = TASKS[name].title, options.seeds
  only = runs.only(options.only, FAMILIES)
  return (
    f'`python -m benchmarks.quality.front --tasks {name}{only} '
    f'--seeds={seeds}`: '
    f'{run.config["workers"]} workers, {run.outcome["steps"]:,} steps, '
    f'{len(RATES)} trials of each row with seed {TUNING_SEED}, final runs with '
    f'seeds {FIRST_SEED} to {FIRST_SEED + seeds - 1}. A row has none if a '
    f'trial with no more bytes beats it by `{MARGIN:.0%}`.\n\n'
    f'{table(found)}\n'
    f'![Score over bytes of the trials, {title}](images/front-{name}.png)\n'
  )


def section(name: str, options: argparse.Namespace) -> runs.Section:
  """Measures a task, and draws its figure; returns its part of the page."""
  task = TASKS[name]
  workload = evidence.create_workload(task.name, options)
  workload = workload._replace(folder=options.work / name)
  found = measure(workload, task, options)
  image_files.write([draw(found, name)], options.work)
  record = {
    _label(*row): {
      'learning_rate': outcome.trial.learning_rate,
      'outcomes': {
        seed: run.outcome
        for entry in outcome
        if entry
        for seed, run in entry.runs.items()
      },
    }
    for row, outcome in found.items()
  }
  return runs.Section(task.title, text(found, name, options), record)


def main() -> None:
  parser = runs.parser(__doc__, 'front', tasks=TASKS)
  about = 'families to train besides BSP'
  parser.add_argument(
    '--only', nargs='+', default=FAMILIES, choices=FAMILIES, help=about
  )
  parser.add_argument(
    '--idx-dir', help='folder with the files of Fashion-MNIST'
  )
  parser.set_defaults(quick=True)
  options = parser.parse_args()
  runs.report_tasks('front', options, lambda name: section(name, options))


if __name__ == '__main__':
  main()
