"""What does a percent of BSP's bytes cost? Local SGD by wire and by period.

  python -m benchmarks.quality.wires --tasks text --into=docs/evidence.md
  python -m benchmarks.quality.wires --tasks text --seeds=5

Trains a task with every wire of `WIRES` at every period of `PERIODS`, and BSP.
Each of them has two trials with one seed, at the config's learning rate and at
twice that rate; the better one on validation counts. It is trained with other
seeds unless a trial that sends no more is better by more than `MARGIN`. Only
then does the test split count.

Prints a table for each task, and draws the trials: the score over the bytes.
Writes wires.json, WORK/plots/front-TASK.png (`python docs/pictures.py WORK
front-TASK` copies it into the docs) and, with --into, the tables into a page,
between `<!-- wires_TASK: ... -->` and `<!-- /wires_TASK -->`. Finished runs are
not repeated.
"""

import argparse
from collections.abc import Iterable, Mapping
import itertools
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

WIRES = 'int4', 'int2'
PERIODS = 5, 7, 10
RATES = '1x', '2x'
FIRST_SEED = 100
MARGIN = 0.01
"""About the deviation of a score over seeds, relative to it."""


class Task(NamedTuple):
  """A task to train.

  Attributes:
    name: its name in `families.TASKS`; the quick form is trained.
    baseline: BSP, with the optimizer of local SGD.
    method: local SGD, as in `compare`.
  """

  name: str
  baseline: str
  method: str

  @property
  def title(self) -> str:
    """The task's title, for a heading."""
    return families.TASKS[self.name].title


TASKS = {
  'text': Task('stdlib_gpt', 'bsp', 'local_sgd'),
  'pictures': Task('fashion_mnist', families.FAMILIES[BSP][1], families.MUON),
}

Row = tuple[str, int]
"""A wire and a period; `(BSP, 1)` for BSP."""


def list_specs(task: Task, wires: Iterable[str]) -> dict[Row, str]:
  """Returns the method of each row, as in `compare`."""
  return {(BSP, 1): task.baseline} | {
    (wire, k): f'{task.method}+sync.period={k}+sync.wire={wire}'
    for wire, k in itertools.product(wires, PERIODS)
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
    for row, spec in list_specs(task, options.wires).items()
  }
  chosen = recipes.choose(tried, options.jobs)
  found = {}
  for row, recipe in chosen.items():
    (trial,) = comparison_table.read_entries([tried[row][recipe]])
    found[row] = Outcome(trial)
  trained = {(BSP, 1), *contenders(found)}
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
  return comparison_table.metric_of([found[BSP, 1].trial])


def contenders(found: Mapping[Row, Outcome]) -> set[Row]:
  """Returns the rows that no other beats by more than `MARGIN`, for no more."""
  field, (run,) = _metric(found), found[BSP, 1].trial.runs.values()
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
  head = ['wire, period', 'rate', "of BSP's bytes", f'validation {metric}']
  head += [f'test {metric}', 'above BSP, %']
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
      above = significance.excess(scores[row], scores[BSP, 1]).cell('+z.2f')
      cells.append(significance.spread([*scores[row].values()], form).text)
      cells.append('' if row[0] == BSP else above.text)
    cells += [''] * (4 - len(cells))
    lines.append([_label(*row), f'{trial.learning_rate:g}', *cells])
  return markdown(lines)


def _label(wire: str, period: int) -> str:
  return BSP if wire == BSP else f'`{wire}`, {period}'


def draw(found: Mapping[Row, Outcome], name: str) -> figure.Plot:
  """The validation score of each wire's trials over its share of the bytes."""
  field, marks, names = _metric(found), [], []
  done = {row: o for row, o in found.items() if o.trial.runs}
  for i, wire in enumerate(dict.fromkeys(wire for wire, _ in done)):
    each = [outcome for (of, _), outcome in done.items() if of == wire]
    x = [100 * _sent(outcome) for outcome in each]
    y = [outcome.trial.mean(f'validation_{field}') for outcome in each]
    look = figure.series(i)._replace(dash=(), size=7)
    marks.append(figure.Line('', x, y, look))  # One name, so no legend.
    names.append(figure.Name(wire, x[-1], y[-1], ''))
  x_axis = figure.Axis(
    limits=(0.1, 110), log=True, ticks=6, label="% of BSP's bytes"
  )
  panel = figure.Panel(
    f'validation {field}', x_axis, figure.Axis(), marks, 300, names
  )
  about = f'Periods {PERIODS[0]} to {PERIODS[-1]} from right to left, one seed.'
  title = f'Score over bytes, {TASKS[name].title}'
  return figure.Plot(f'front-{name}', title, about, [panel])


def text(found: Mapping[Row, Outcome], name: str, seeds: int) -> str:
  """The page's section about a task: the training, the table, the figure."""
  (run,) = found[BSP, 1].trial.runs.values()
  title = TASKS[name].title
  return (
    f'`python -m benchmarks.quality.wires --tasks {name} --seeds={seeds}`: '
    f'{run.config["workers"]} workers, {run.outcome["steps"]:,} steps, '
    f'{len(RATES)} trials of each row with seed {TUNING_SEED}, final runs with '
    f'seeds {FIRST_SEED} to {FIRST_SEED + seeds - 1}, except of rows that a '
    f'trial with no more bytes beats by `{MARGIN:.0%}`.\n\n{table(found)}\n'
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
  return runs.Section(task.title, text(found, name, options.seeds), record)


def main() -> None:
  parser = runs.parser(__doc__, 'wires', tasks=TASKS)
  add = parser.add_argument
  add('--wires', nargs='+', default=WIRES, choices=WIRES)
  add('--idx-dir', help='folder with the files of Fashion-MNIST')
  parser.set_defaults(quick=True)
  options = parser.parse_args()
  runs.report_tasks('wires', options, lambda name: section(name, options))


if __name__ == '__main__':
  main()
