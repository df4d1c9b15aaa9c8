"""Does any adaptive rule beat a period, if all send the same bytes?

  python -m benchmarks.quality.triggers
  python -m benchmarks.quality.triggers --tasks text --seeds=5

Trains a task with rules that decide when workers average, what they average, or
in how many bits (benchmarks/quality/trigger_methods.py). Every rule sends as
many bytes as an average at every fifth step in int4, or fewer. Each has six
trials with one seed: two settings of its own with three learning rates; BSP has
one setting with six. The best trial on validation is trained with other seeds,
and only then does the test split count.

Prints a table for each task, the best on validation first: the score on test,
its difference to the period seed by seed, the bytes, and the shortest and the
longest gap between averages. Writes triggers.json and, with --into, the tables
into a page, between `<!-- triggers_TASK: ... -->` and
`<!-- /triggers_TASK -->`. Finished runs are not repeated.
"""

import argparse
from collections.abc import Mapping
import itertools
import pathlib
from typing import NamedTuple

from benchmarks import marked
from benchmarks.quality import families, runs
from benchmarks.quality.recipes import best, Recipe, TUNING_SEED, Workload
from benchmarks.table import markdown, report
from selsync_jax.commands import config_file, flags
from selsync_jax.report import comparison_table, significance
from selsync_jax.report.comparison_table import Entry
from selsync_jax.runs.history import Trial

FILE = pathlib.Path(__file__).with_name('trigger_methods.py')
PERIOD = 'a period'
FIRST_SEED = 90
TRIALS = 6
RATES = '1x', '2x', '4x', '0.5x', '3x', '8x'
"""Learning rates; a setting of two has the first three."""

INT4 = '+sync.wire=int4'
SELSYNC = f'selsync+sync.delta=None+sync.lssr=0.8{INT4}+sync.max_period='
RULES: dict[str, dict[str, str]] = {
  'BSP, all bytes': {'': 'bsp'},
  PERIOD: {
    '5': f'local_sgd+sync.period=5{INT4}',
    '3, in 2 bits': 'local_sgd+sync.period=3+sync.wire=int2',
  },
  'SelSync': {
    'smoothing 0.16': f'{SELSYNC}None',
    'smoothing 0.04': f'{SELSYNC}None+sync.smoothing=0.04',
  },
  'SelSync, longest gap': {
    'at most 10': f'{SELSYNC}10',
    'at most 7': f'{SELSYNC}7',
  },
  'SelSync, even gaps': {
    '4 to 7': f'evenly{INT4}',
    '3 to 6': f'evenly+sync.shortest=3+sync.longest=6{INT4}',
  },
  'SelSync by array': {
    'smoothing 0.16': f'by_array_change{INT4}',
    'smoothing 0.04': f'by_array_change+sync.smoothing=0.04{INT4}',
  },
  'momentum by array (CurvaDion)': {
    'momentum 0.9': f'by_momentum{INT4}',
    'momentum 0.99': f'by_momentum+sync.momentum=0.99{INT4}',
  },
  'variance (FDA)': {
    'linear': f'by_variance{INT4}',
    'naive': f'by_variance+sync.variant=naive{INT4}',
  },
  'drift of a worker': {
    'all parameters': f'by_drift{INT4}',
    'an array, relative': f'by_drift+sync.relative=True{INT4}',
  },
  'learning rate (QSR)': {
    'at least 4': f'quadratic{INT4}',
    'at least 2': f'quadratic+sync.h_min=2{INT4}',
  },
  'bits by drift': {
    '2 or 8 bits': 'by_precision',
    '2 or 4 bits, period 4': (
      'by_precision+sync.period=4+sync.fine=int4+sync.share=0.6'
    ),
  },
  'arrays by drift': {
    'each step': 'send_arrays',
    'period 2': 'send_arrays+sync.period=2',
  },
}
"""The settings of each rule, as in `compare`, by their names in the table."""

TASKS = {
  'text': ('A language model, AdamW', {}),
  'text_muon': ('A language model, Muon', {}),
  'pictures': ('Fashion-MNIST, SGD', families.TASKS['fashion_mnist'].fields),
  'one_label': (
    'Fashion-MNIST, SGD, ten workers with one label each',
    families.TASKS['fashion_mnist_one_label'].fields,
  ),
}
"""The title and the fields of each task of trigger_methods.py."""


class Outcome(NamedTuple):
  """The final runs of a rule."""

  setting: str  # Its name in `RULES`.
  entry: Entry


def measure(
  workload: Workload, options: argparse.Namespace
) -> dict[str, Outcome]:
  """The outcome of every rule, the best on validation first."""

  def train(trials):
    runs.train_all(trials, options.jobs)

  tried = {name: list_tried(workload, name) for name in options.rules}
  train(t for each in tried.values() for t in each.values())
  recipes = {name: best(each) for name, each in tried.items()}
  finals = {
    name: workload.again(recipe, options.seeds, FIRST_SEED)
    for name, recipe in recipes.items()
  }
  train(t for each in finals.values() for t in each)
  found = {}
  for name, each in finals.items():
    settings = {spec: setting for setting, spec in RULES[name].items()}
    (entry,) = comparison_table.read_entries(each)
    found[name] = Outcome(settings[recipes[name].spec], entry)
  order = sorted(found, key=lambda name: found[name].entry.rank, reverse=True)
  return {name: found[name] for name in order}


def list_tried(workload: Workload, rule: str) -> dict[Recipe, Trial]:
  """The trials of a rule: its settings at some learning rates."""
  specs = RULES[rule].values()
  rates = [*map(flags.rate, RATES[: TRIALS // len(specs)])]
  return {
    Recipe(spec, trial.learning_rate): trial
    for spec in specs
    for trial in workload.list_trials(spec, rates, TUNING_SEED)
  }


def table(found: Mapping[str, Outcome]) -> str:
  """The table of a task, in Markdown."""
  entries = [outcome.entry for outcome in found.values()]
  field = f'test_{comparison_table.metric_of(entries)}'
  head = [
    *('rule', 'best setting, learning rate', field.replace('_', ' ')),
    *('above the period, %', "of BSP's bytes", 'gaps'),
  ]
  lines = [head, ['---', '---', *['---:'] * (len(head) - 2)]]
  values = [[*entry.values(field).values()] for entry in entries]
  form = significance.column_form(values, '.4f')
  against = found[PERIOD].entry.values(field)
  for name, (setting, entry) in found.items():
    shown = ', '.join(filter(None, [setting, f'{entry.learning_rate:g}']))
    if entry.diverged:
      shown += f' ({len(entry.diverged)} seeds diverged)'
    cells = ['–'] * 4
    if entry.runs:
      scores = entry.values(field)
      above = significance.excess(scores, against).cell('+z.2f')
      cells = [
        significance.spread([*scores.values()], form).text,
        '' if name == PERIOD else above.text,
        f'{entry.mean("of_bsp"):.1%}',
        _gaps(entry),
      ]
    lines.append([name, shown, *cells])
  return markdown(lines)


def _gaps(entry: Entry) -> str:
  """The shortest and the longest gap between averages, over all seeds."""
  gaps = []
  for run in entry.runs.values():
    steps = [row['step'] for row in run.rows if row.get('synced')]
    gaps += [b - a for a, b in itertools.pairwise(steps)]
  return f'{min(gaps)} to {max(gaps)}' if gaps else '–'


def create_workload(name: str, options: argparse.Namespace) -> Workload:
  """The workload of a task with the command line's options."""
  fields = {
    'data.backend': 'numpy',
    'mapper': 'map',  # Faster for several runs at a time.
    'eval.every_epochs': 1000.0,
    **TASKS[name][1],
  }
  if options.idx_dir and not name.startswith('text'):
    fields['data.idx_dir'] = options.idx_dir
  given = config_file.arguments(fields)
  return Workload(f'{FILE}:{name}', given, TRIALS, options.work / name)


def text(
  found: Mapping[str, Outcome], name: str, options: argparse.Namespace
) -> str:
  """The page's section about a task: the training, and the table."""
  run = next(iter(found[PERIOD].entry.runs.values()))
  last = FIRST_SEED + options.seeds - 1
  return (
    f'`python -m benchmarks.quality.triggers --tasks {name} '
    f'--seeds={options.seeds}`: {run.config["workers"]} workers, '
    f'{run.outcome["steps"]:,} steps, {TRIALS} trials of each rule with seed '
    f'{TUNING_SEED}, final runs with seeds {FIRST_SEED} to {last}. The 95% '
    f'intervals are not corrected for the number of rules.\n\n{table(found)}'
  )


def main() -> None:
  parser = runs.parser(__doc__, 'triggers')
  add = parser.add_argument
  add('--tasks', nargs='+', default=list(TASKS), choices=TASKS)
  add('--rules', nargs='+', default=list(RULES), choices=RULES)
  add('--idx-dir', help='folder with the files of Fashion-MNIST')
  options = parser.parse_args()
  options.rules = dict.fromkeys([PERIOD, *options.rules])
  if options.into:
    for name in options.tasks:
      marked.check(options.into, f'triggers_{name}')
  results, notes = {}, []
  for name in options.tasks:
    found = measure(create_workload(name, options), options)
    said = text(found, name, options)
    if options.into:
      marked.insert(
        f'\n{said}\n', pathlib.Path(options.into), f'triggers_{name}'
      )
    results[name] = {
      rule: {
        'setting': setting,
        'method': entry.label,
        'learning_rate': entry.learning_rate,
        'diverged': entry.diverged,
        'outcomes': {seed: run.outcome for seed, run in entry.runs.items()},
      }
      for rule, (setting, entry) in found.items()
    }
    notes.append(f'### {TASKS[name][0]}\n\n{said}')
  report(options.out, results, notes=notes)


if __name__ == '__main__':
  main()
