"""The table of a comparison: the paper's, with several seeds; and its verdict.

The difference to BSP, or another baseline, is taken seed by seed, because runs
with the same seed share initial weights and batches. `facts.Difference` says
whether seeds tell two methods apart.
"""

from collections.abc import Callable, Collection, Sequence
import csv
import io
import math
import pathlib
import statistics
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.table

from selsync_jax.config import ConfigError, RunError
from selsync_jax.report import facts
from selsync_jax.report.facts import Cell, Difference, spread
from selsync_jax.runs import files, history
from selsync_jax.runs.history import Run, Trial


class Entry(NamedTuple):
  """A method at one learning rate."""

  label: str  # The method and its settings.
  learning_rate: float  # The schedule's peak.
  runs: dict[int, Run]  # The finished runs by seed.
  diverged: list[int]  # The seeds whose gradients became infinite.

  def values(self, field: str) -> dict[int, float]:
    """Returns a field of the summaries by seed; NaN if it was not finite.

    Beside them are `of_bsp`, the share of BSP's bytes, and `learning_rate`.
    """
    if field == 'learning_rate':
      return dict.fromkeys(self.runs, self.learning_rate)
    if field == 'of_bsp':
      share = history.share_of_bsp
      return {seed: share(run.outcome) for seed, run in self.runs.items()}
    outcomes = {seed: run.outcome for seed, run in self.runs.items()}
    return {
      seed: math.nan if outcome[field] is None else outcome[field]
      for seed, outcome in outcomes.items()
      if field in outcome
    }

  def mean(self, field: str) -> float:
    """Returns the mean of a field of the summary over seeds."""
    return statistics.fmean(self.values(field).values())

  @property
  def rank(self) -> tuple[int, float, float]:
    """The criterion for the learning rate; higher is better."""
    runs = self.runs.values()
    score, loss = (
      statistics.fmean(run.rank(metric) for run in runs) if runs else -math.inf
      for metric in (None, 'loss')
    )
    return -len(self.diverged), score, loss


def read_entries(trials: Sequence[Trial]) -> list[Entry]:
  """Returns every method at every learning rate of its grid."""
  entries = {}
  for trial in trials:
    key = trial.label, trial.learning_rate
    entry = entries.setdefault(key, Entry(*key, {}, []))
    if not trial.is_done:
      entry.diverged.append(trial.seed)
      continue
    run = entry.runs[trial.seed] = history.read(trial.workdir, trial.label)
    if run.summary is None:
      raise RunError(
        f'{trial.workdir}: the summary is of fewer steps than the rows; '
        'run its command again to finish it'
      )
  return list(entries.values())


def choose_rates(entries: Sequence[Entry]) -> list[Entry]:
  """Returns every method at the learning rate with the highest rank."""
  labels = dict.fromkeys(entry.label for entry in entries)
  return [
    max((e for e in entries if e.label == label), key=lambda e: e.rank)
    for label in labels
  ]


def metric_of(entries: Sequence[Entry]) -> str:
  """Returns the metric by which these runs are compared."""
  runs = (run for entry in entries for run in entry.runs.values())
  names = (run.validated for run in runs)
  return next((main for main, *_ in filter(None, names)), 'loss')


Table = dict[str, dict[str, Cell]]
"""The cells of each method, by its label and the column's title."""


class Baseline(NamedTuple):
  """The methods that the others are compared to, by their labels."""

  name: str
  labels: Collection[str]


_TITLES = {
  'lssr': 'LSSR',
  'of_bsp': 'of BSP',
  'bytes_per_worker': 'sent per worker',
}
COLUMNS = 'difference', 'of_bsp', 'learning_rate', 'seeds', *facts.FIELDS
"""The names of columns that are no scores."""


def column_name(text: str) -> str:
  """Returns the name of a column by its name or its title.

  >>> column_name('of BSP'), column_name('sent per worker')
  ('of_bsp', 'bytes_per_worker')
  """
  name = text.strip().replace(' ', '_').lower()
  if name.startswith('difference_to_'):
    return 'difference'
  titles = {title.replace(' ', '_').lower(): k for k, title in _TITLES.items()}
  return titles.get(name, name)


def default_columns(entries: Sequence[Entry]) -> list[str]:
  """Returns the names of the columns that a table has by default."""
  metric = metric_of(entries)
  runs = [run for entry in entries for run in entry.runs.values()]
  times = ['seconds']
  if history.time_field(runs) != 'seconds':
    times = ['virtual_seconds', 'waited', 'staleness']
  return [
    *(f'validation_{metric}', 'difference', 'of_bsp', 'bytes_per_worker'),
    *('lssr', f'test_{metric}', *times, 'learning_rate', 'seeds', 'steps'),
  ]


def _fields(entries: Sequence[Entry]) -> list[str]:
  """Returns the names of all numbers that the runs have."""
  outcomes = [run.outcome for e in entries for run in e.runs.values()]
  names = (k for o in outcomes for k, v in o.items() if not isinstance(v, str))
  return [*dict.fromkeys(('of_bsp', 'learning_rate', *names))]


def check_columns(entries: Sequence[Entry], columns: Sequence[str]) -> None:
  """Raises `ConfigError` for a column that no run has."""
  known = ['difference', 'seeds', *_fields(entries)]
  for name in columns:
    if name not in known:
      raise ConfigError(f'--columns={name}: is not one of {", ".join(known)}')


def table(
  entries: Sequence[Entry],
  columns: Sequence[str] | None = None,
  baseline: Baseline | None = None,
) -> Table:
  """Returns the results of each method.

  Args:
    entries: the methods.
    columns: the names of the columns, by default `default_columns`.
    baseline: what the column `difference` is a difference to, by default BSP.
  """
  baseline = baseline or bsp(entries)
  apart = differences(entries, baseline)
  titles = _TITLES | {'difference': f'difference to {baseline.name}'}
  cells = {
    titles.get(name, name.replace('_', ' ')): _cells(name, entries, apart)
    for name in columns or default_columns(entries)
  }
  return {
    entry.label: {title: column[i] for title, column in cells.items()}
    for i, entry in enumerate(entries)
  }


def _cells(
  name: str, entries: Sequence[Entry], apart: Sequence[Difference]
) -> list[Cell]:
  """Returns the cells of a column."""
  if name == 'seeds':
    return [_seeds(entry) for entry in entries]
  if name == 'difference':
    form = _form(entries, f'validation_{metric_of(entries)}')
    return [each.cell(f'+z{form}') for each in apart]
  columns = [list(entry.values(name).values()) for entry in entries]
  means = [statistics.fmean(values) if values else None for values in columns]
  if facts.form(name) == 'B':
    return [_cell(mean, facts.size) for mean in means]
  if name == 'of_bsp':
    return [_cell(mean, '{:.1%}'.format) for mean in means]
  if name == 'learning_rate':
    return [_cell(mean, '{:g}'.format) for mean in means]
  if name == 'steps':
    return [spread(list(set(values)), facts.form(name)) for values in columns]
  form = _form(entries, name)
  return [spread(values, form) for values in columns]


def _cell(mean: float | None, text: Callable[[float], str]) -> Cell:
  return spread([], '') if mean is None else Cell(mean, text(mean))


def _form(entries: Sequence[Entry], name: str) -> str:
  """Returns the format of a column, whose decimals follow its spread."""
  columns = (list(entry.values(name).values()) for entry in entries)
  return facts.column_form(columns, facts.form(name))


def _seeds(entry: Entry) -> Cell:
  text = f'{len(entry.runs)}'
  if entry.diverged:
    text += f' of {len(entry.runs) + len(entry.diverged)}, others diverged'
  return Cell(len(entry.runs), text)


def bsp(entries: Sequence[Entry]) -> Baseline:
  """Returns BSP as the baseline, with any settings."""
  labels = [entry.label for entry in entries]
  return Baseline('BSP', [x for x in labels if x.split(', ')[0] == 'bsp'])


def differences(
  entries: Sequence[Entry], baseline: Baseline
) -> list[Difference]:
  """Returns how far the scores of each method are above the baseline's.

  Of several baselines, it is that whose config is most like the method's. A
  baseline has no difference.
  """
  field = f'validation_{metric_of(entries)}'
  known = [entry for entry in entries if entry.label in baseline.labels]

  def distance(other, entry):
    own, others = (next(iter(e.runs.values())).config for e in (entry, other))
    return sum(
      name not in ('seed', 'optimizer.learning_rate')
      for name, *_ in files.differences(others, own)
    )

  def scores_beside(entry):
    others = [] if entry in known else known
    reference = min(others, key=lambda e: distance(e, entry), default=None)
    return reference.values(field) if reference else {}

  return [
    facts.difference(entry.values(field), scores_beside(entry))
    for entry in entries
  ]


def records(
  entries: Sequence[Entry], baseline: Baseline | None = None
) -> list[dict[str, Any]]:
  """Returns the numbers of each method by name, as JSON has them.

  A number is the mean over seeds, and NAME_sd its standard deviation. The
  interval of `difference` is from `difference_low` to `difference_high`. What
  is not known, or not finite, is `None`.
  """

  def finite(number):
    return number if math.isfinite(number) else None

  apart = differences(entries, baseline or bsp(entries))
  found = []
  for entry, difference in zip(entries, apart, strict=True):
    (low, high), above = difference.bounds, difference.values.values()
    numbers = {
      'method': entry.label,
      'seeds': len(entry.runs),
      'diverged': len(entry.diverged),
      'difference': finite(statistics.fmean(above)) if above else None,
      'difference_low': finite(low),
      'difference_high': finite(high),
    }
    for name in _fields(entries):
      values = list(entry.values(name).values())
      numbers[name] = finite(statistics.fmean(values)) if values else None
      sd = facts.deviation(values) if len(values) > 1 else math.nan
      numbers[f'{name}_sd'] = finite(sd)
    found.append(numbers)
  return found


def rates(entries: Sequence[Entry], chosen: Sequence[Entry]) -> Table:
  """Returns a table of all learning rates, with the scores that decided."""
  metric = metric_of(chosen)
  field = f'validation_{metric}'
  form = _form(entries, field)
  return {
    f'{e.label}, learning rate {e.learning_rate:g}': {
      f'validation {metric}': spread(list(e.values(field).values()), form),
      'diverged': Cell(len(e.diverged), str(len(e.diverged))),
      'chosen': Cell(None, 'yes' if e in chosen else ''),
    }
    for e in entries
  }


def _lines(rows: Table) -> list[list[str]]:
  """Returns the texts of the head, and of each row."""
  first, *_ = rows.values()
  return [
    ['method', *first],
    *([label, *(c.text for c in row.values())] for label, row in rows.items()),
  ]


def markdown(rows: Table) -> str:
  """Formats the table as Markdown."""
  head, *body = _lines(rows)
  lines = [head, ['---', *('---:' for _ in head[1:])], *body]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


_LATEX = str.maketrans(
  {character: f'\\{character}' for character in '&%$#_{}'}
  | {'\\': r'\textbackslash{}', '~': r'\textasciitilde{}'}
  | {'^': r'\textasciicircum{}', '±': r'$\pm$', '–': '--'}
)


def latex(rows: Table) -> str:
  """Formats the table for LaTeX with the package booktabs."""
  lines = _lines(rows)
  head, *body = (
    ' & '.join(text.translate(_LATEX) for text in line) + r' \\'
    for line in lines
  )
  parts = [
    rf'\begin{{tabular}}{{l{"r" * (len(lines[0]) - 1)}}}',
    *(r'\toprule', head, r'\midrule', *body, r'\bottomrule'),
    r'\end{tabular}',
  ]
  return '\n'.join(parts) + '\n'


def show(rows: Table) -> None:
  """Prints a table, as wide as the terminal."""
  first, *_ = rows.values()
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
  table.add_column('method')
  for title in first:
    table.add_column(title.replace(' ', '\n'), justify='right')
  for label, row in rows.items():
    table.add_row(label, *(cell.text for cell in row.values()))
  rich.console.Console().print(table)


def write_csv(
  entries: Sequence[Entry],
  chosen: Sequence[Entry],
  path: pathlib.Path,
  columns: Sequence[str] | None = None,
  baseline: Baseline | None = None,
) -> None:
  """Writes a CSV file with a line per run, with all fields or the columns."""
  apart = differences(chosen, baseline or bsp(chosen))
  above = {
    (entry.label, entry.learning_rate): difference.values
    for entry, difference in zip(chosen, apart, strict=True)
  }
  rows = []
  for entry in entries:
    key = entry.label, entry.learning_rate
    for seed, run in entry.runs.items():
      own = {'label': entry.label, 'learning_rate': entry.learning_rate}
      own |= {'chosen': entry in chosen, **run.outcome, 'seed': seed}
      own['of_bsp'] = entry.values('of_bsp')[seed]
      own['difference'] = above.get(key, {}).get(seed, '')
      rows.append(own)
  names = list(dict.fromkeys(name for row in rows for name in row))
  if columns:
    asked = [name for name in columns if name in names]
    names = list(dict.fromkeys(['label', 'seed', 'chosen', *asked]))
  text = io.StringIO()
  writer = csv.DictWriter(text, names, extrasaction='ignore')
  writer.writeheader()
  writer.writerows(rows)
  files.write(path, text.getvalue())


def undecided(entries: Sequence[Entry]) -> dict[str, list[str]]:
  """Returns, by method, the others that its seeds do not tell from it."""
  field = f'validation_{metric_of(entries)}'
  scores = {e.label: e.values(field) for e in entries if e.runs}

  def is_decided(label, other):
    return facts.difference(scores[label], scores[other]).excludes_zero

  return {
    label: [x for x in scores if x != label and not is_decided(label, x)]
    for label in scores
  }


def verdict(entries: Sequence[Entry]) -> str:
  """Describes the best method on validation, its cost, and how sure that is.

  It also names the cheapest method that is as good as far as the seeds tell,
  and methods whose runs all diverged.
  """
  metric = metric_of(entries)
  best = max(entries, key=lambda entry: entry.rank)
  column = [[*e.values(f'validation_{metric}').values()] for e in entries]

  def contender(entry):
    scores = entry.values(f'validation_{metric}')
    run, share = next(iter(entry.runs.values())), entry.mean('of_bsp')
    score = facts.quality(run, metric, list(scores.values()), column)
    result = f'{score} {facts.price(share)}'
    return facts.Contender(entry.label, result, share, scores)

  others = [
    contender(entry)
    for entry in entries
    if entry is not best and len(entry.diverged) <= len(best.diverged)
  ]
  first = contender(best)
  mean = ' mean' * (others != [] and len(best.runs) < facts.FEWEST)
  text = f'Best{mean} of {len(entries)}: {first.name}, {first.result}'
  text += facts.doubt(first, others)
  if lost := [entry.label for entry in entries if not entry.runs]:
    text += f'; diverged with every seed: {"; ".join(lost)}'
  return text
