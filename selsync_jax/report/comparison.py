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
from selsync_jax.report import (
  comparison_table,
  facts,
  image_files,
  page,
  pareto_plot,
  plots,
  run_page,
)
from selsync_jax.report.comparison_table import (
  Baseline,
  Entry,
  metric_of,
  Table,
)
from selsync_jax.runs import files, provenance
from selsync_jax.runs.history import Trial

NAME = 'comparison'
NUMBERS = (
  'mean ± sample standard deviation over seeds, on the validation split; '
  "differences seed by seed, with their 95% interval by Student's t, as if "
  'they were normal'
)
"""What the numbers of the tables are."""
_ON_TERMINAL = 'of_bsp', 'lssr', 'seconds', 'virtual_seconds'


class Comparison(NamedTuple):
  """The results of a comparison."""

  rows: Table
  best: str  # The sentence about the best method.
  page: pathlib.Path
  records: list[dict[str, Any]]  # See `comparison_table.records`.
  shown: Table  # The columns for a terminal.

  @property
  def markdown(self) -> str:
    """The table, what its numbers are, and the sentence."""
    table = comparison_table.markdown(self.rows)
    numbers = NUMBERS[0].upper() + NUMBERS[1:]
    return f'{table}\n{numbers}.\n\n{self.best}.\n'


def write(
  trials: Sequence[Trial],
  out: pathlib.Path,
  columns: Sequence[str] | None = None,
  baseline: Baseline | None = None,
) -> Comparison:
  """Writes the comparison of runs, which are finished or have diverged.

  Args:
    trials: the runs.
    out: the folder of the comparison.
    columns: the names of the columns of each table. By default, LaTeX leaves
      out the seconds of this machine, and a terminal more than that.
    baseline: the methods that the others are compared to, by default BSP.
  """
  entries = comparison_table.read_entries(trials)
  best_rates = comparison_table.choose_rates(entries)
  chosen = [entry for entry in best_rates if entry.runs]
  if not chosen:
    raise ConfigError('nothing to compare: every run diverged')
  comparison_table.check_columns(chosen, columns or ())
  default = comparison_table.default_columns(chosen)

  def table(names):
    return comparison_table.table(chosen, columns or names, baseline)

  rows = table(default)
  on_terminal = [
    name
    for name in default
    if name in _ON_TERMINAL or name.startswith('validation_')
  ]
  best = comparison_table.verdict(best_rates)
  groups = {entry.label: list(entry.runs.values()) for entry in chosen}
  metrics = dict.fromkeys([metric_of(chosen), 'loss'])
  fronts = [pareto_plot.plot(chosen, metric) for metric in metrics]
  figures = fronts + plots.shared_plots(groups)
  image_files.write(figures, out, ('png', 'svg', 'pdf'))
  image_files.write_columns(figures, out)
  found = Comparison(
    rows,
    best,
    out / f'{NAME}.html',
    comparison_table.records(chosen, baseline),
    table(on_terminal),
  )
  files.write(out / f'{NAME}.md', found.markdown)
  latex = comparison_table.latex(table([n for n in default if n != 'seconds']))
  files.write(out / f'{NAME}.tex', f'% {NUMBERS}\n{latex}')
  comparison_table.write_csv(
    entries, chosen, out / f'{NAME}.csv', columns, baseline
  )
  about = _provenance(trials, out) | {'records': found.records}
  files.write_json(out / f'{NAME}.json', about)
  runs = [run for entry in chosen for run in entry.runs.values()]
  has_rates = len(entries) > len(best_rates)
  subtitle = f'{facts.shared_setting(runs)}; {NUMBERS}'
  if has_rates:
    subtitle += '; too favorable, as these scores chose the learning rates'
  sections = [
    _table('summary', 'Comparison', rows),
    *_undecided(chosen),
    *map(page.figure, figures),
  ]
  if has_rates:
    rates = comparison_table.rates(entries, chosen)
    title = 'Learning rates, chosen on the validation split'
    sections.append(_table('grid', title, rates))
  sections.append(_links(entries, out))
  page.write(found.page, best, subtitle, sections)
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
  if max(len(entry.runs) for entry in chosen) < facts.FEWEST:
    return []  # The headline says that so few seeds tell nothing apart.
  rows = [
    (label, ['; '.join(others) or 'none'])
    for label, others in comparison_table.undecided(chosen).items()
  ]
  title = f'What the seeds do not tell apart by validation {metric_of(chosen)}'
  head = ['method', '95% interval of the differences contains 0, or is unknown']
  return [page.table('undecided', title, head, rows)]


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
