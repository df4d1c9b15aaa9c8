"""The report of a comparison: page, figures, and tables in three formats.

The validation split decides on the learning rate of each method, and on the
best method. The final parameters' score on the test split is only shown.
"""

from collections.abc import Sequence
import os
import pathlib
from typing import Any, NamedTuple

from markupsafe import Markup

from selsync_jax.config import ConfigError
from selsync_jax.report import comparison_table
from selsync_jax.report import facts
from selsync_jax.report import image_files
from selsync_jax.report import page
from selsync_jax.report import pareto_plot
from selsync_jax.report import plots
from selsync_jax.report import run_page
from selsync_jax.report.comparison_table import Entry
from selsync_jax.report.comparison_table import metric_of
from selsync_jax.report.comparison_table import Table
from selsync_jax.runs import files
from selsync_jax.runs import provenance
from selsync_jax.runs.history import Trial

NAME = 'comparison'
NUMBERS = (
  'mean ± sample standard deviation over seeds, on the validation split; '
  "differences seed by seed, with their 95% interval by Student's t, as if "
  'they were normal'
)
"""What the numbers of the tables are."""


class Comparison(NamedTuple):
  """The results of a comparison."""

  rows: Table
  best: str  # The sentence about the best method.
  page: pathlib.Path

  @property
  def markdown(self) -> str:
    """The table, what its numbers are, and the sentence."""
    table = comparison_table.markdown(self.rows)
    return f'{table}\n{NUMBERS.capitalize()}.\n\n{self.best}.\n'


def write(trials: Sequence[Trial], out: pathlib.Path) -> Comparison:
  """Writes the comparison of runs, which are finished or have diverged."""
  entries = comparison_table.read_entries(trials)
  best_rates = comparison_table.choose_rates(entries)
  chosen = [entry for entry in best_rates if entry.runs]
  if not chosen:
    raise ConfigError('nothing to compare: every run diverged')
  rows = comparison_table.table(chosen)
  best = comparison_table.verdict(best_rates)
  groups = {entry.label: list(entry.runs.values()) for entry in chosen}
  metrics = dict.fromkeys([metric_of(chosen), 'loss'])
  fronts = [pareto_plot.plot(chosen, metric) for metric in metrics]
  figures = fronts + plots.shared_plots(groups)
  image_files.write(figures, out, ('png', 'svg', 'pdf'))
  found = Comparison(rows, best, out / f'{NAME}.html')
  files.write(out / f'{NAME}.md', found.markdown)
  table = comparison_table.latex(rows)
  files.write(out / f'{NAME}.tex', f'% {NUMBERS}\n{table}')
  comparison_table.write_csv(entries, chosen, out / f'{NAME}.csv')
  files.write_json(out / f'{NAME}.json', _provenance(trials, out))
  runs = [run for entry in chosen for run in entry.runs.values()]
  has_rates = len(entries) > len(best_rates)
  subtitle = f'{facts.shared_setting(runs)}; {NUMBERS}'
  if has_rates:
    subtitle += '; too favorable, as these scores chose the learning rates'
  body = [
    page.header(best, subtitle),
    _table('summary', 'Comparison', rows),
    *_undecided(chosen),
    *map(page.figure, figures),
  ]
  if has_rates:
    rates = comparison_table.rates(entries, chosen)
    title = 'Learning rates, chosen on the validation split'
    body.append(_table('grid', title, rates))
  body.append(_links(entries, out))
  files.write(found.page, page.page(best, body))
  return found


def _provenance(trials: Sequence[Trial], out: pathlib.Path) -> dict[str, Any]:
  """Returns what it takes to repeat a comparison: its command, and its runs.

  A run's versions and commits are those that trained it. This process may have
  others, since a finished run is not trained again.
  """
  here = provenance.origin()
  return {
    'command': here['command'],
    'folder': here['folder'],
    'runs': {
      str(trial.workdir.relative_to(out)): {
        'config': trial.config.to_dict(),
        'sessions': [
          {name: session[name] for name in ('command', 'versions', 'code')}
          for session in provenance.sessions(trial.workdir)
        ],
      }
      for trial in trials
    },
  }


def _undecided(chosen: Sequence[Entry]) -> list[Markup]:
  rows = [
    (label, ['; '.join(others) or 'none'])
    for label, others in comparison_table.undecided(chosen).items()
  ]
  title = f'What the seeds do not tell apart by validation {metric_of(chosen)}'
  head = ['method', '95% interval of the differences contains 0']
  return [page.table('undecided', title, head, rows)] if rows else []


def _table(name: str, title: str, rows: Table) -> Markup:
  head = ['method', *next(iter(rows.values()))]
  lines = [
    (label, [page.number(*cell) for cell in row.values()])
    for label, row in rows.items()
  ]
  return page.table(name, title, head, lines)


def _links(entries: Sequence[Entry], out: pathlib.Path) -> Markup:
  lines = []
  for entry in entries:
    for seed, run in entry.runs.items():
      address = os.path.relpath(run.workdir / run_page.REPORT, out)
      name = f'{entry.label}, learning rate {entry.learning_rate:g}'
      lines.append((f'{name}, seed {seed}', [page.link(address, 'report')]))
  return page.table('runs', 'Runs', ['run', ''], lines)
