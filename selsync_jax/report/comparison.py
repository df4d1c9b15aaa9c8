"""The report of a comparison: page, figures, and tables in three formats.

The validation split decides on the learning rate of each method, and on the
best method. The final parameters' score on the test split is only shown.
"""

from collections.abc import Iterator, Sequence
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
  run_page,
  tables,
)
from selsync_jax.report.comparison_table import Baseline, Results
from selsync_jax.report.tables import Table
from selsync_jax.runs import files, provenance
from selsync_jax.runs.history import Trial

NAME = 'comparison'
NUMBERS = (
  'mean ± sample standard deviation over seeds, on the validation split; '
  "differences seed by seed, with their 95% interval by Student's t, as if "
  'they were normal'
)
"""The meaning of the numbers in the tables."""
_ON_TERMINAL = 'of_bsp', 'lssr', 'seconds', 'virtual_seconds'


class Comparison(NamedTuple):
  """The results of a comparison."""

  rows: Table
  best: str  # The sentence about the best method.
  page: pathlib.Path
  records: list[dict[str, Any]]  # See `Results.records`.
  shown: Table  # The columns for a terminal.

  @property
  def markdown(self) -> str:
    """The table, the meaning of its numbers, and the best method."""
    numbers = NUMBERS[0].upper() + NUMBERS[1:]
    return f'{tables.markdown(self.rows)}\n{numbers}.\n\n{self.best}.\n'


def write(
  trials: Sequence[Trial],
  out: pathlib.Path,
  columns: Sequence[str] = (),
  baseline: Baseline | None = None,
) -> Comparison:
  """Writes the comparison of runs, which are finished or have diverged.

  The tables have the `columns` of these names. By default, LaTeX leaves out the
  seconds of this machine, and a terminal shows still fewer columns.
  """
  results = Results(comparison_table.read_entries(trials), baseline)
  if not results.chosen:
    raise ConfigError('nothing to compare: every run diverged')
  names = results.columns
  on_terminal = [
    name
    for name in names
    if name in _ON_TERMINAL or name.startswith('validation_')
  ]
  found = Comparison(
    results.table(columns),
    results.verdict(),
    out / f'{NAME}.html',
    results.records(),
    results.table(columns or on_terminal),
  )
  files.write(out / f'{NAME}.md', found.markdown)
  latex = results.table(
    columns or [name for name in names if name != 'seconds']
  )
  files.write(out / f'{NAME}.tex', f'% {NUMBERS}\n{tables.latex(latex)}')
  here = provenance.origin()
  about = {'command': here['command'], 'folder': here['folder']}
  files.write_json(out / f'{NAME}.json', about | {'records': found.records})
  subtitle = f'{facts.shared_setting(results.runs)}; {NUMBERS}'
  if len(results.entries) > len(results.best):
    subtitle += '; too favorable, because these scores chose the learning rates'
  page.write(found.page, found.best, subtitle, _sections(results, found, out))
  return found


def _sections(
  results: Results, found: Comparison, out: pathlib.Path
) -> Iterator[Markup]:
  """Yields the sections of the page; writes the files of its figures."""
  groups = {each.label: list(each.runs.values()) for each in results.chosen}
  metrics = dict.fromkeys([results.metric, 'loss'])
  fronts = [pareto_plot.plot(results.chosen, metric) for metric in metrics]
  figures = fronts + run_page.shared_plots(groups)
  image_files.write(figures, out, ('png', 'svg', 'pdf'), columns=True)
  yield page.table('summary', 'Comparison', found.rows, 'method')
  yield from map(page.figure, figures)
  if len(results.entries) > len(results.best):
    title = 'Learning rates, chosen on the validation split'
    yield page.table('grid', title, results.rates(), 'method')
  links = {
    f'{entry.label}, learning rate {entry.learning_rate:g}, seed {seed}': {
      '': page.link(
        os.path.relpath(run.workdir / run_page.REPORT, out), 'report'
      )
    }
    for entry in results.entries
    for seed, run in entry.runs.items()
  }
  yield page.table('runs', 'Runs', links, 'run')
