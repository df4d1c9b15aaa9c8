"""Does any adaptive rule beat a period, if all send the same bytes?

  python -m benchmarks.quality.triggers --into=docs/evidence.md
  python -m benchmarks.quality.triggers --tasks text --seeds=5

Trains a task with rules that decide when workers average, what they average, or
in how many bits (benchmarks/quality/trigger_methods.py). Every rule sends as
many bytes as an average at every fifth step in int4. Each has six trials with
one seed: two settings of its own with three learning rates, or one setting with
six. The best trial on validation is trained with other seeds, and only then
does the test split count.

Prints a table for each task, the best on validation first: the score on
validation and test, its difference to the period seed by seed, the bytes, and
the gaps between averages. Writes triggers.json and, with --into, the tables
into a page, between `<!-- triggers_TASK: ... -->` and
`<!-- /triggers_TASK -->`. Finished runs are not repeated.
"""

import argparse
from collections.abc import Mapping
import functools
import itertools
import pathlib
from typing import Any

from benchmarks.quality import families, runs
from benchmarks.quality.recipes import best, Recipe, TUNING_SEED, Workload
from benchmarks.table import markdown, report
from selsync_jax.commands import config_file, flags
from selsync_jax.report import comparison_table, marked, significance
from selsync_jax.report.comparison_table import Entry

FILE = pathlib.Path(__file__).with_name('trigger_methods.py')
PERIOD = 'a period'
FIRST_SEED = 90
TRIALS = 6
RATES = '1x', '2x', '4x', '0.5x', '3x', '8x'
"""Learning rates; a rule with two settings has the first three."""

SELSYNC = 'selsync+sync.delta=None+sync.lssr=0.8+sync.wire=int4'
RULES = {
  'BSP, all bytes': ('bsp',),
  PERIOD: ('local_sgd+sync.period=5+sync.wire=int4',),
  'SelSync': (
    f'{SELSYNC}+sync.max_period=None',
    f'{SELSYNC}+sync.max_period=None+sync.smoothing=0.04',
  ),
  'SelSync, longest gap': (
    f'{SELSYNC}+sync.max_period=10',
    f'{SELSYNC}+sync.max_period=7',
  ),
  'SelSync, even gaps': (
    'evenly+sync.wire=int4',
    'evenly+sync.shortest=3+sync.longest=6+sync.wire=int4',
  ),
  'SelSync by array': (
    'by_layer+sync.wire=int4',
    'by_layer+sync.smoothing=0.04+sync.wire=int4',
  ),
  'momentum by array (CurvaDion)': (
    'by_momentum+sync.wire=int4',
    'by_momentum+sync.momentum=0.99+sync.wire=int4',
  ),
  'variance (FDA)': (
    'by_variance+sync.wire=int4',
    'by_variance+sync.variant=sketch+sync.wire=int4',
  ),
  'drift of a worker': ('by_drift+sync.wire=int4',),
  'learning rate (QSR)': (
    'quadratic+sync.wire=int4',
    'quadratic+sync.h_min=2+sync.wire=int4',
  ),
  'bits by drift': (
    'by_precision',
    'by_precision+sync.period=4+sync.coarse=int2+sync.fine=int4+sync.share=0.6',
  ),
  'arrays by drift': ('by_array', 'by_array+sync.period=2'),
}
"""The settings of each rule, as in `compare`."""

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


def measure(
  workload: Workload, options: argparse.Namespace
) -> dict[str, Entry]:
  """The final runs of every rule, the best on validation first."""

  def train(trials):
    runs.train_all(trials, options.jobs)

  tried = {name: list_tried(workload, RULES[name]) for name in options.rules}
  train(t for each in tried.values() for t in each.values())
  recipes = {name: best(each) for name, each in tried.items()}
  finals = {}
  for name, (spec, rate) in recipes.items():
    rates = [functools.partial(_fixed, rate)]
    finals[name] = workload.list_trials(spec, rates, FIRST_SEED, options.seeds)
  train(t for each in finals.values() for t in each)
  found = {}
  for name, each in finals.items():
    (found[name],) = comparison_table.read_entries(each)
  order = sorted(found, key=lambda name: found[name].rank, reverse=True)
  return {name: found[name] for name in order}


def _fixed(rate: float, own: float) -> float:
  del own
  return rate


def list_tried(workload: Workload, specs: tuple[str, ...]) -> dict[Recipe, Any]:
  """The trials of a rule: its settings at some learning rates."""
  rates = [*map(flags.rate, RATES[: TRIALS // len(specs)])]
  return {
    Recipe(spec, trial.learning_rate): trial
    for spec in specs
    for trial in workload.list_trials(spec, rates, TUNING_SEED)
  }


def table(found: Mapping[str, Entry]) -> str:
  """The table of a task, in Markdown."""
  metric = comparison_table.metric_of([*found.values()])
  fields = [f'{split}_{metric}' for split in ('validation', 'test')]
  head = [
    *('rule', 'best setting'),
    *(field.replace('_', ' ') for field in fields),
    *('above the period, test, %', "of BSP's bytes", 'gaps'),
  ]
  lines = [head, ['---', '---', *['---:'] * (len(head) - 2)]]
  forms = [
    significance.column_form(
      [[*e.values(f).values()] for e in found.values()], '.4f'
    )
    for f in fields
  ]
  for name, entry in found.items():
    cells = ['–'] * 5
    if entry.runs:
      scores = [entry.values(field) for field in fields]
      against = found[PERIOD].values(fields[1])
      above = significance.excess(scores[1], against).cell('+z.2f')
      cells = [
        *(
          significance.spread([*each.values()], form).text
          for each, form in zip(scores, forms, strict=True)
        ),
        '' if name == PERIOD else above.text,
        f'{entry.mean("of_bsp"):.2%}',
        _gaps(entry),
      ]
    setting = f'{entry.label}, learning rate {entry.learning_rate:g}'
    if entry.diverged:
      setting += f' ({len(entry.diverged)} seeds diverged)'
    lines.append([name, setting, *cells])
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


def text(found: Mapping[str, Entry], name: str) -> str:
  """The page's section about a task: the training, and the table."""
  run = next(iter(found[PERIOD].runs.values()))
  return (
    f'`python -m benchmarks.quality.triggers --tasks {name}`: '
    f'{run.config["workers"]} workers, {run.outcome["steps"]:,} steps, '
    f'{TRIALS} trials of each rule with seed {TUNING_SEED}, final runs with '
    f'seeds {FIRST_SEED} to {FIRST_SEED + len(found[PERIOD].runs) - 1}.\n\n'
    f'{table(found)}'
  )


def main() -> None:
  marks = [f'triggers_{name}' for name in TASKS]
  parser = runs.parser(__doc__, 'triggers', *marks)
  add = parser.add_argument
  add('--tasks', nargs='+', default=list(TASKS), choices=TASKS)
  add('--rules', nargs='+', default=list(RULES), choices=RULES)
  add('--idx-dir', help='folder with the files of Fashion-MNIST')
  options = parser.parse_args()
  options.rules = dict.fromkeys([PERIOD, *options.rules])
  results, notes = {}, []
  for name in options.tasks:
    found = measure(create_workload(name, options), options)
    said = text(found, name)
    if options.into:
      marked.insert(
        f'\n{said}\n', pathlib.Path(options.into), f'triggers_{name}'
      )
    results[name] = {
      rule: {
        'setting': entry.label,
        'learning_rate': entry.learning_rate,
        'diverged': entry.diverged,
        'outcomes': {seed: run.outcome for seed, run in entry.runs.items()},
      }
      for rule, entry in found.items()
    }
    notes.append(f'### {TASKS[name][0]}\n\n{said}')
  report(options.out, results, notes=notes)


if __name__ == '__main__':
  main()
