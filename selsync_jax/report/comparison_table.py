"""The table of a comparison: the paper's, with several seeds; and its verdict.

The difference to BSP is taken seed by seed, because runs with the same seed
share initial weights and batches. Of several BSP, it is that whose config is
most like the method's: with as many workers, for example.

Two methods are told apart in the same way: by the 95% interval of their
differences seed by seed, unless 0 is in it.
"""

from collections.abc import Mapping, Sequence
import csv
import io
import math
import pathlib
import statistics
from typing import NamedTuple

import rich.box
import rich.console
import rich.table

from selsync_jax.config import RunError
from selsync_jax.report import facts
from selsync_jax.report.facts import Cell
from selsync_jax.report.facts import spread
from selsync_jax.runs import files
from selsync_jax.runs import history
from selsync_jax.runs.history import Run
from selsync_jax.runs.history import Trial


class Entry(NamedTuple):
  """A method at one learning rate."""

  label: str  # The method and its settings.
  learning_rate: float  # The schedule's peak.
  runs: dict[int, Run]  # The finished runs by seed.
  diverged: list[int]  # The seeds whose gradients became infinite.

  def values(self, field: str) -> dict[int, float]:
    """Returns a field of the summaries by seed; NaN if it was not finite."""
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
  def share_of_bsp(self) -> float:
    """The mean over seeds of the traffic, as a share of BSP's."""
    outcomes = [run.outcome for run in self.runs.values()]
    return statistics.fmean(map(history.share_of_bsp, outcomes))

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
"""The cells of each method, by its label and the column's name."""


def table(entries: Sequence[Entry]) -> Table:
  """Returns the results of each method, the most important first."""
  bsp = [entry for entry in entries if entry.label.split(', ')[0] == 'bsp']
  metric = metric_of(entries)
  return {
    entry.label: _row(entry, _reference(entry, bsp), metric)
    for entry in entries
  }


def _reference(entry: Entry, bsp: Sequence[Entry]) -> Entry | None:
  """Returns the BSP to which a method is compared; none for a BSP."""

  def differences(other):
    own, others = (next(iter(e.runs.values())).config for e in (entry, other))
    return sum(
      field not in ('seed', 'optimizer.learning_rate')
      for field, *_ in files.differences(others, own)
    )

  return None if entry in bsp else min(bsp, key=differences, default=None)


def _row(entry: Entry, bsp: Entry | None, metric: str) -> dict[str, Cell]:
  scores = entry.values(f'validation_{metric}')
  reference = bsp.values(f'validation_{metric}') if bsp else {}
  sent = entry.mean('bytes_per_worker')
  seeds = f'{len(entry.runs)}'
  if entry.diverged:
    seeds += f' of {len(entry.runs) + len(entry.diverged)}, others diverged'
  times = {'seconds': '.1f'}
  if history.time_field(entry.runs.values()) != 'seconds':
    times = {'virtual_seconds': ',.1f', 'waited': ',.1f', 'staleness': '.2f'}
  return {
    f'validation {metric}': _over_seeds(entry, f'validation_{metric}', '.4f'),
    'difference to BSP': facts.interval(
      _differences(scores, reference), '+z.4f'
    ),
    'of BSP': spread([entry.share_of_bsp], '.1%'),
    'sent per worker': Cell(sent, facts.size(sent)),
    'LSSR': _over_seeds(entry, 'lssr', '.3f'),
    f'test {metric}': _over_seeds(entry, f'test_{metric}', '.4f'),
    **{
      field.replace('_', ' '): _over_seeds(entry, field, form)
      for field, form in times.items()
    },
    'learning rate': Cell(entry.learning_rate, f'{entry.learning_rate:g}'),
    'seeds': Cell(len(entry.runs), seeds),
    'steps': spread(list(set(entry.values('steps').values())), ',.0f'),
  }


def _over_seeds(entry: Entry, field: str, form: str) -> Cell:
  return spread(list(entry.values(field).values()), form)


def rates(entries: Sequence[Entry], chosen: Sequence[Entry]) -> Table:
  """Returns a table of all learning rates, with the scores that decided."""
  metric = metric_of(chosen)
  return {
    f'{e.label}, learning rate {e.learning_rate:g}': {
      f'validation {metric}': _over_seeds(e, f'validation_{metric}', '.4f'),
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
  """Prints the most important columns, as wide as the terminal."""
  first, *_ = rows.values()
  wanted = ('LSSR', 'of BSP', 'seconds', 'virtual seconds')
  names = [n for n in first if n in wanted or n.startswith('validation ')]
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
  table.add_column('method')
  for name in names:
    table.add_column(name.replace(' ', '\n'), justify='right')
  for label, row in rows.items():
    table.add_row(label, *(row[name].text for name in names))
  rich.console.Console().print(table)


def write_csv(
  entries: Sequence[Entry], chosen: Sequence[Entry], path: pathlib.Path
) -> None:
  """Writes a CSV file with a line per run."""
  rows = []
  for entry in entries:
    own = {'label': entry.label, 'learning_rate': entry.learning_rate}
    own['chosen'] = entry in chosen
    rows += [own | run.outcome for run in entry.runs.values()]
  names = dict.fromkeys(name for row in rows for name in row)
  text = io.StringIO()
  writer = csv.DictWriter(text, list(names))
  writer.writeheader()
  writer.writerows(rows)
  files.write(path, text.getvalue())


def _differences(
  scores: Mapping[int, float], others: Mapping[int, float]
) -> list[float]:
  """Returns the differences of the seeds that both have."""
  return [scores[k] - others[k] for k in sorted(scores.keys() & others.keys())]


def undecided(entries: Sequence[Entry]) -> dict[str, list[str]]:
  """Returns, for methods of several seeds, those not told apart from them."""
  field = f'validation_{metric_of(entries)}'
  scores = {entry.label: entry.values(field) for entry in entries}
  scores = {label: each for label, each in scores.items() if len(each) > 1}

  def is_open(label, other):
    low, high = facts.bounds(_differences(scores[label], scores[other]))
    return other != label and not (low > 0 or high < 0)

  return {
    label: [other for other in scores if is_open(label, other)]
    for label in scores
  }


def verdict(entries: Sequence[Entry]) -> str:
  """Describes the best method on validation, its cost, and how sure that is.

  One whose runs all diverged counts, and is named.
  """
  metric = metric_of(entries)
  best = max(entries, key=lambda entry: entry.rank)
  scores = list(best.values(f'validation_{metric}').values())
  run = next(iter(best.runs.values()))
  others, doubt = undecided(entries).get(best.label), ''
  if others is None:
    doubt = '; one seed, so the spread is not known'
  elif len(others) > 3:
    doubt = f'; its seeds do not tell it from {len(others)} others'
  elif others:
    doubt = f'; its seeds do not tell it from {"; ".join(others)}'
  if lost := [entry.label for entry in entries if not entry.runs]:
    doubt += f'; diverged with every seed: {"; ".join(lost)}'
  return (
    f'Best of {len(entries)}: {best.label}, '
    f'{facts.quality(run, metric, scores)} '
    f'{facts.price(best.share_of_bsp)}{doubt}'
  )
