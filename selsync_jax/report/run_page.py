"""The page of a run, or of several: headline, key figures, plots, tables."""

from collections.abc import Iterator, Mapping, Sequence
import pathlib
from typing import Any

from markupsafe import Markup

from selsync_jax.config import flat
from selsync_jax.fields import FIELDS
from selsync_jax.report import facts, figure, image_files, page, plots
from selsync_jax.report.facts import Cell
from selsync_jax.runs import history
from selsync_jax.runs.history import Run

REPORT = 'report.html'
_Row = tuple[str, list[str]]  # A name, and the cell of each run.


def write(
  workdirs: Sequence[pathlib.Path],
  out: pathlib.Path,
  more: Sequence[figure.Plot] = (),
  columns: bool = False,
) -> pathlib.Path:
  """Writes the page of runs, finished or not; returns its path.

  Args:
    workdirs: the folders of the runs.
    out: the folder of the page.
    more: figures besides those of the runs.
    columns: whether the figures are also files for a paper's column.
  """
  runs = history.read_all(workdirs)
  figures = [*plots.all_plots(runs), *more]
  image_files.write(figures, out)
  if columns:
    image_files.write_columns(figures, out)
  title = facts.headline(runs)
  subtitle = '; '.join(facts.description(run) for run in runs)
  sections, names = list(map(page.figure, figures)), [run.name for run in runs]
  rows = _rows([facts.facts(_shown_outcome(run)) for run in runs])
  summary = page.table('summary', 'Summary', ['', *names], rows)
  if len(runs) > 1:
    sections = [summary, *sections]
  else:
    key_figures = page.key_figures(_key_figures(runs[0]))
    sections = [key_figures, *sections, summary]
  config = _config(runs, ['field', *names])
  footer = page.footer(filter(None, map(facts.origin, runs)))
  return page.write(out / REPORT, title, subtitle, [*sections, config, footer])


def _shown_outcome(run: Run) -> dict[str, Any]:
  """Returns the outcome without scores that say too little."""
  return {
    field: value
    for field, value in run.outcome.items()
    if not history.is_score(field) or run.shows(field.partition('_')[2])
  }


def _config(runs: Sequence[Run], head: Sequence[str]) -> Markup:
  """Returns the table of the configs, with defaults folded away."""
  rows = _rows([_fields(run) for run in runs])
  rows.sort(key=lambda row: len(set(row[1])) == 1)  # Differences come first.
  defaults = {name: _shown(field.default) for name, field in FIELDS.items()}
  folded = [row for row in rows if {*row[1]} <= {defaults.get(row[0]), '–'}]
  others = [row for row in rows if row not in folded]
  summary = f'{len(folded)} fields that have their default'
  return page.table('config', 'Config', head, others, summary, folded)


def _fields(run: Run) -> dict[str, Cell]:
  fields = flat(run.config).items()
  return {k: Cell(None, _shown(v)) for k, v in fields}


def _shown(value: Any) -> str:
  """Returns a field as the table shows it; a tuple is a list in JSON."""
  if value is None:
    return '–'
  return str(list(value) if isinstance(value, tuple) else value)


def _rows(columns: Sequence[Mapping[str, Cell]]) -> list[_Row]:
  """Returns the rows of a table from a column of cells for each run."""
  names = dict.fromkeys(name for column in columns for name in column)
  none = Cell(None, '–')
  return [
    (name, [page.number(*column.get(name, none)) for column in columns])
    for name in names
  ]


def _key_figures(run: Run) -> Iterator[tuple[str, str, str]]:
  """Yields name, number and remark of the numbers at the top of the page."""
  outcome = run.outcome
  cell = {k: page.number(*v) for k, v in facts.facts(outcome).items()}
  if metric := run.metric:
    value = outcome[f'validation_{metric}']
    remark = Markup('loss {}').format(cell.get('validation loss', 'not finite'))
    yield f'validation {metric}', page.number(value, f'{value:.4f}'), remark
  if 'lssr' in outcome:
    of = Markup('{} of {} steps synchronized')
    remark = of.format(cell['synchronizations'], cell['steps'])
    yield 'LSSR', cell['LSSR (local steps / steps)'], remark
  remark = 'BSP: known when the run is finished'
  if bsp := cell.get('the same run under BSP'):
    remark = Markup('{} under BSP').format(bsp)
  yield 'sent per worker', cell['bytes sent per worker'], remark
  if 'virtual seconds' in cell:
    waited = cell.get('of these, waiting for other workers', '–')
    remark = Markup('{} waiting for other workers').format(waited)
    yield 'virtual seconds', cell['virtual seconds'], remark
  else:
    remark = Markup('{} samples/s').format(cell.get('samples/s', '–'))
    yield 'seconds of training', cell['seconds'], remark
