"""Which methods are as good as BSP with 3 % of its bytes? Losers stay listed.

  python -m benchmarks.quality.evidence --into=docs/evidence.md
  python -m benchmarks.quality.evidence --quick --tasks stdlib_gpt

Every family of methods (benchmarks/quality/families.py) gets the same number of
trials on each task: its settings at several learning rates, with one seed. BSP,
the baseline, gets more learning rates. `selsync tune` gets the same number of
trials for each of its methods (benchmarks/quality/evidence.toml), and looks for
the best score with 3 % of BSP's bytes. The best recipe on validation is trained
with other seeds, and only then does the test split count.

Prints a table for each task, sorted by validation score: the score, its
difference to BSP's seed by seed, the share of BSP's bytes, and the seconds of a
run on two networks, by the formula of docs/plan.md. On the network `10:1`,
BSP's bytes take ten times as long as a step computes on this machine, plus a
millisecond per message. With --emulated, the first recipes that keep to 3 % of
the bytes are also timed on an emulated cluster (benchmarks/quality/shaped.py).
Families with the same recipe share a row. Writes evidence.json, which has more,
and, with --into, the tables into a page, between `<!-- evidence_TASK -->` and
`<!-- /evidence_TASK -->`. Finished runs are not repeated.
"""

import argparse
from collections.abc import Mapping, Sequence
import pathlib
import shlex
import statistics
from typing import Any, NamedTuple

from benchmarks.network import cluster as emulated
from benchmarks.quality import runs as training
from benchmarks.quality import shaped
from benchmarks.quality.families import BSP, FAMILIES, QUICK, TASKS
from benchmarks.quality.ratios import create_clock
from benchmarks.quality.recipes import SHARE, train, Workload
from benchmarks.table import markdown
from selsync_jax.config import ConfigError
from selsync_jax.report import comparison_table, facts, significance
from selsync_jax.report.comparison_table import Entry
from selsync_jax.runs.history import Trial
from selsync_jax.training.problem import create_problem
from selsync_jax.training.settings import check

TRIALS, QUICK_TRIALS = 6, 4  # Per family.
SEEDS = 3  # Seeds of the final runs, by default.
SHOWN = 10, 100  # The ratios of the table.


class Outcome(NamedTuple):
  """The result of a family's best recipe.

  Attributes:
    entry: the recipe's runs.
    seconds: duration of each run, by seed and ratio.
    measured: seconds on the emulated cluster, by ratio, relative to BSP on an
      unlimited network; empty if not measured.
  """

  entry: Entry
  seconds: dict[int, dict[int, float]]
  measured: dict[int, float]

  @property
  def sent(self) -> float:
    """Bytes that a worker sends, the mean over seeds."""
    return self.entry.mean('bytes_per_worker')


class Result(NamedTuple):
  """The results of all families on a task.

  Attributes:
    step: seconds that a step of BSP computes.
    found: results by family, the best on validation first.
  """

  step: float
  found: dict[str, Outcome]


def judge(finals: Mapping[str, Sequence[Trial]]) -> Result:
  """The results of every family with the seeds of the final runs."""
  done = [t for each in finals.values() for t in each if t.is_done]
  clock = create_clock(finals[BSP][0], done)
  found = {}
  for name, each in finals.items():
    (entry,) = comparison_table.read_entries(each)
    seconds = {t.seed: clock.seconds(t) for t in each if t.is_done}
    found[name] = Outcome(entry, seconds, {})
  best = sorted(found, key=lambda name: found[name].entry.rank, reverse=True)
  return Result(clock.step, {name: found[name] for name in best})


def by_runs(finals: Mapping[str, Sequence[Trial]]) -> list[list[str]]:
  """Returns the names of the families, joined where their runs are the same.

  `tune` may have found the recipe of a family.
  """
  groups: dict[tuple[pathlib.Path, ...], list[str]] = {}
  for name, each in finals.items():
    groups.setdefault(tuple(t.workdir for t in each), []).append(name)
  return [*groups.values()]


def emulate(
  result: Result,
  finals: Mapping[str, Sequence[Trial]],
  count: int,
  folder: pathlib.Path,
) -> Result:
  """Times the first recipes that send few bytes on the emulated cluster."""
  found = result.found
  few = SHARE * found[BSP].sent
  kept = [n for n, o in found.items() if o.entry.runs and o.sent <= few]
  groups = by_runs({name: finals[name] for name in kept})[:count]
  times = shaped.measure(
    finals[BSP][0],
    {n: next(t for t in finals[n] if t.is_done) for n, *_ in groups},
    folder,
  )
  timed = {
    name: found[name]._replace(measured=times[group[0]])
    for group in groups
    for name in group
  }
  return result._replace(found=found | timed)


def measure(workload: Workload, options: argparse.Namespace) -> Result:
  """Trains on a task, and returns the results."""
  every = list(FAMILIES)[: QUICK if options.quick else None]
  names = dict.fromkeys([BSP, *(options.families or every)])
  finals = train(workload, names, options.seeds, options.jobs)
  result = judge(finals)
  if options.emulated:
    folder = workload.folder / 'emulated'
    return emulate(result, finals, options.emulated, folder)
  return result


def table(found: Mapping[str, Outcome]) -> str:
  """The table of a task, in Markdown."""
  bsp = found[BSP]
  field = f'test_{comparison_table.metric_of([bsp.entry])}'
  measured = shaped.RATIOS if any(o.measured for o in found.values()) else ()
  done = [outcome.entry for outcome in found.values() if outcome.entry.runs]
  head = [
    *('family', 'best recipe', field.replace('_', ' '), 'above BSP, %'),
    'bytes',
    *(f'seconds at {ratio}:1' for ratio in SHOWN),
    *(f'measured at {ratio}:1' for ratio in measured),
  ]
  lines = [head, ['---', '---', *['---:'] * (len(head) - 2)]]
  form = significance.column_form(
    [[*e.values(field).values()] for e in done], '.4f'
  )
  groups: dict[tuple[str, float], list[str]] = {}  # By recipe.
  for name, outcome in found.items():
    groups.setdefault(outcome.entry[:2], []).append(name)
  for names in groups.values():
    outcome = found[names[0]]
    entry, cells = outcome.entry, ['–'] * (len(head) - 2)
    recipe = f'{entry.label}, rate {entry.learning_rate:g}'
    if lost := len(entry.diverged):
      recipe += f' ({lost} of {lost + len(entry.runs)} seeds diverged)'
    if entry.runs:
      scores = entry.values(field)
      above = significance.excess(scores, bsp.entry.values(field)).cell('+z.2f')
      times = outcome.seconds.values()
      cells = [
        significance.spread([*scores.values()], form).text,
        '' if BSP in names else above.text,
        f'{outcome.sent / bsp.sent:.1%}',
        *(f'{statistics.fmean(t[r] for t in times):,.1f}' for r in SHOWN),
        *(
          f'{outcome.measured[r]:.2f}' if outcome.measured else '–'
          for r in measured
        ),
      ]
    lines.append(['; '.join(names), recipe, *cells])
  return markdown(lines)


def command(name: str, options: argparse.Namespace) -> str:
  """The command that measures a task as this one did."""
  words = ['python', '-m', 'benchmarks.quality.evidence', '--tasks', name]
  words += ['--quick'] * options.quick
  if options.families:
    words += ['--families', *options.families]
  if options.seeds != SEEDS:
    words.append(f'--seeds={options.seeds}')
  if options.emulated:
    words.append(f'--emulated={options.emulated}')
  return shlex.join(words)


def text(name: str, result: Result, options: argparse.Namespace) -> str:
  """The page's section about a task: the training, the table."""
  bsp = result.found[BSP].entry
  run = next(iter(bsp.runs.values()))
  steps, seeds = run.outcome['steps'], len(bsp.runs)
  return (
    f'`{command(name, options)}`: '
    f'{run.config["workers"]} workers, {steps:,} steps, {seeds} seeds. BSP '
    f'sends {facts.size(result.found[BSP].sent)} per worker, and takes '
    f'{steps * result.step:,.1f} s on a network without a limit.\n\n'
    f'{table(result.found)}'
  )


def record(result: Result) -> dict[str, Any]:
  """The result of a task, for JSON."""
  rows = [
    {
      'family': name,
      'recipe': outcome.entry.label,
      'learning_rate': outcome.entry.learning_rate,
      'diverged': outcome.entry.diverged,
      'outcomes': {s: run.outcome for s, run in outcome.entry.runs.items()},
      'seconds': outcome.seconds,
      'measured': outcome.measured,
    }
    for name, outcome in result.found.items()
  ]
  return {'step_seconds': result.step, 'families': rows}


def create_workload(name: str, options: argparse.Namespace) -> Workload:
  """The workload of a task with the command line's options."""
  task = TASKS[name]
  config, fields, count = task.config, {}, TRIALS
  if options.quick:
    config, fields, count = task.quick, task.fields, QUICK_TRIALS
  return Workload.create(
    config, fields, count, options.work / name, options.idx_dir
  )


def has_data(name: str, options: argparse.Namespace) -> bool:
  """Whether a task's data can be read; if not, prints the reason."""
  (bsp, *_) = create_workload(name, options).family(BSP).values()
  try:
    create_problem(check(bsp.config))
  except ConfigError as error:
    print(f'{name} is left out: {error}')
    return False
  return True


def section(name: str, options: argparse.Namespace) -> training.Section:
  """Trains on a task; returns the result."""
  result = measure(create_workload(name, options), options)
  said = text(name, result, options)
  return training.Section(TASKS[name].title, said, record(result))


def main() -> None:
  parser = training.parser(__doc__, 'evidence', tasks=TASKS)
  add = parser.add_argument
  add('--families', nargs='+', choices=FAMILIES, help='BSP is always added')
  about = f'short runs, few trials, and {QUICK} families, in WORK-quick'
  add('--quick', action='store_true', help=about)
  about = 'recipes to time on the emulated cluster'
  add('--emulated', type=int, default=0, help=about)
  add('--idx-dir', help='folder with the files of Fashion-MNIST')
  options = parser.parse_args()
  if options.quick:
    options.work = options.work.with_name(f'{options.work.name}-quick')
  if options.emulated and (reason := emulated.missing()):
    print(f'no times of the emulated cluster: {reason}')
    options.emulated = 0
  options.tasks = [name for name in options.tasks if has_data(name, options)]
  training.report_tasks(
    'evidence', options, lambda name: section(name, options)
  )


if __name__ == '__main__':
  main()
