"""The table of a comparison, like the paper's but over seeds; its verdict.

The difference to BSP, or another baseline, is taken seed by seed, because runs
with the same seed share initial weights and batches. `significance.Difference`
says whether seeds tell two methods apart.
"""

from collections.abc import Collection, Sequence
import dataclasses
import functools
import math
import statistics
from typing import Any, NamedTuple

from selsync_jax.config import RunError
from selsync_jax.report import facts, metric_plot, significance
from selsync_jax.report.significance import Difference, spread
from selsync_jax.report.tables import Cell, NONE, Table
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

    Two more fields are `of_bsp`, the share of BSP's bytes, and `learning_rate`.
    """
    found = {}
    for seed, run in self.runs.items():
      more = {'of_bsp': run.share_of_bsp, 'learning_rate': self.learning_rate}
      if field in (numbers := run.outcome | more):
        found[seed] = math.nan if numbers[field] is None else numbers[field]
    return found

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

  @property
  def config(self) -> dict[str, Any]:
    """The config of its first run."""
    return next(iter(self.runs.values())).config


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
        f'{trial.workdir}: the summary covers fewer steps than the rows; '
        'repeat the command of this run to finish it'
      )
  return list(entries.values())


def metric_of(entries: Sequence[Entry]) -> str:
  """Returns the metric by which these runs are compared."""
  runs = (run for entry in entries for run in entry.runs.values())
  names = (run.validated for run in runs)
  return next((main for main, *_ in filter(None, names)), 'loss')


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


@dataclasses.dataclass(frozen=True)
class Results:
  """The results of a comparison: of each method, at its best learning rate.

  Attributes:
    entries: every method at every learning rate.
    baseline: the methods that the others are compared to, by default BSP with
      any settings.
  """

  entries: Sequence[Entry]
  baseline: Baseline | None = None

  @functools.cached_property
  def best(self) -> list[Entry]:
    """Every method at the learning rate with the highest rank."""
    best: dict[str, Entry] = {}
    for entry in self.entries:
      other = best.setdefault(entry.label, entry)
      best[entry.label] = max(other, entry, key=lambda e: e.rank)
    return list(best.values())

  @functools.cached_property
  def chosen(self) -> list[Entry]:
    """The best entries that have finished runs."""
    return [entry for entry in self.best if entry.runs]

  @property
  def runs(self) -> list[Run]:
    """The runs of the chosen entries."""
    return [run for entry in self.chosen for run in entry.runs.values()]

  @property
  def metric(self) -> str:
    """The metric by which methods are compared, see `score`."""
    return metric_of(self.chosen)

  @property
  def score(self) -> str:
    """The field of the summaries that decides."""
    return f'validation_{self.metric}'

  @functools.cached_property
  def reference(self) -> Baseline:
    """The baseline."""
    labels = [entry.label for entry in self.chosen]
    of_bsp = [label for label in labels if label.split(', ')[0] == 'bsp']
    return self.baseline or Baseline('BSP', of_bsp)

  @functools.cached_property
  def differences(self) -> list[Difference]:
    """How far the scores of each chosen entry are above the baseline's.

    A method is compared to the baseline with the most similar config. A
    baseline has no difference.
    """
    known = [e for e in self.chosen if e.label in self.reference.labels]

    def distance(other, entry):
      return sum(
        name not in ('seed', 'optimizer.learning_rate')
        for name, *_ in files.differences(other.config, entry.config)
      )

    def difference(entry):
      others = [] if entry in known else known
      nearest = min(others, key=lambda e: distance(e, entry), default=None)
      scores = nearest.values(self.score) if nearest else {}
      return significance.difference(entry.values(self.score), scores)

    return [difference(entry) for entry in self.chosen]

  @property
  def columns(self) -> list[str]:
    """The names of the columns that a table has by default."""
    times = ['virtual_seconds', 'waited', 'staleness']
    if metric_plot.time_field(self.runs) == 'seconds':
      times = ['seconds']
    return [
      *(self.score, 'difference', 'of_bsp', 'bytes_per_worker', 'lssr'),
      *(f'test_{self.metric}', *times, 'learning_rate', 'seeds', 'steps'),
    ]

  @property
  def fields(self) -> list[str]:
    """The names of all numbers that the runs have."""
    items = (item for run in self.runs for item in run.outcome.items())
    names = (name for name, value in items if not isinstance(value, str))
    return [*dict.fromkeys(('of_bsp', 'learning_rate', *names))]

  def table(self, columns: Sequence[str] = ()) -> Table:
    """Returns the results of each method, by default in all `columns`.

    A column that no run has is empty.
    """
    titles = _TITLES | {'difference': f'difference to {self.reference.name}'}
    cells = {
      titles.get(name, name.replace('_', ' ')): self._cells(name)
      for name in columns or self.columns
    }
    return {
      entry.label: {title: column[i] for title, column in cells.items()}
      for i, entry in enumerate(self.chosen)
    }

  def _cells(self, name: str) -> list[Cell]:
    """Returns the cells of a column."""
    if name == 'seeds':
      return [_seeds(entry) for entry in self.chosen]
    if name == 'difference':
      form = f'+z{_form(self.chosen, self.score)}'
      return [each.cell(form) for each in self.differences]
    columns = [list(entry.values(name).values()) for entry in self.chosen]
    if name == 'steps':
      columns = [list(set(values)) for values in columns]
    text = {'of_bsp': '{:.1%}'.format, 'learning_rate': '{:g}'.format}.get(name)
    if facts.form(name) == 'B':
      text = facts.size
    if text is None:
      form = _form(self.chosen, name)
      return [spread(values, form) for values in columns]
    means = [statistics.fmean(values) if values else None for values in columns]
    return [NONE if mean is None else Cell(mean, text(mean)) for mean in means]

  def rates(self) -> Table:
    """Returns a table of all learning rates, with the scores that decided."""
    form = _form(self.entries, self.score)
    return {
      f'{e.label}, learning rate {e.learning_rate:g}': {
        f'validation {self.metric}': spread(
          [*e.values(self.score).values()], form
        ),
        'diverged': Cell(len(e.diverged), str(len(e.diverged))),
        'chosen': Cell(None, 'yes' if e in self.chosen else ''),
      }
      for e in self.entries
    }

  def records(self) -> list[dict[str, Any]]:
    """Returns the numbers of each method by name, ready for JSON.

    A number is the mean over seeds, and NAME_sd its standard deviation. The
    interval of `difference` is from `difference_low` to `difference_high`. A
    number that is unknown or not finite is `None`.
    """
    found = []
    for entry, difference in zip(self.chosen, self.differences, strict=True):
      runs, diverged = len(entry.runs), len(entry.diverged)
      numbers: dict[str, float] = {'seeds': runs, 'diverged': diverged}
      columns = {'difference': difference.values}
      numbers['difference_low'], numbers['difference_high'] = difference.bounds
      columns |= {name: entry.values(name) for name in self.fields}
      for name, by_seed in columns.items():
        values = list(by_seed.values())
        numbers[name] = statistics.fmean(values) if values else math.nan
        sd = significance.deviation(values) if len(values) > 1 else math.nan
        numbers[f'{name}_sd'] = sd
      finite = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
      found.append({'method': entry.label} | finite)
    return found

  def verdict(self) -> str:
    """Describes the best method on validation, its cost, and how sure that is.

    It also names the cheapest method that the seeds do not tell from the best,
    and methods whose runs all diverged.
    """
    best = max(self.best, key=lambda entry: entry.rank)
    column = [[*e.values(self.score).values()] for e in self.best]

    def contender(entry):
      scores = entry.values(self.score)
      run, share = next(iter(entry.runs.values())), entry.mean('of_bsp')
      score = facts.quality(run, self.metric, list(scores.values()), column)
      result = f'{score} {facts.price(share)}'
      return significance.Contender(entry.label, result, share, scores)

    others = [
      contender(entry)
      for entry in self.best
      if entry is not best and len(entry.diverged) <= len(best.diverged)
    ]
    first = contender(best)
    mean = ' mean' * (others != [] and len(best.runs) < significance.FEWEST)
    text = f'Best{mean} of {len(self.best)}: {first.name}, {first.result}'
    text += significance.doubt(first, others)
    if lost := [entry.label for entry in self.best if not entry.runs]:
      text += f'. Diverged with every seed: {"; ".join(lost)}'
    return text


def _form(entries: Sequence[Entry], name: str) -> str:
  """Returns the format of a column, whose decimals follow its spread."""
  columns = (list(entry.values(name).values()) for entry in entries)
  return significance.column_form(columns, facts.form(name))


def _seeds(entry: Entry) -> Cell:
  text = f'{len(entry.runs)}'
  if entry.diverged:
    text += f' of {len(entry.runs) + len(entry.diverged)}, others diverged'
  return Cell(len(entry.runs), text)
