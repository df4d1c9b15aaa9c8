"""The page of a run, or of several: headline, key figures, plots, tables."""

from collections.abc import Iterator, Mapping, Sequence
import pathlib
from typing import Any

from markupsafe import Markup

from selsync_jax.config import flat
from selsync_jax.fields import FIELDS
from selsync_jax.report import facts, figure, image_files, page, plots
from selsync_jax.report.tables import Cell, NONE, Table
from selsync_jax.runs import history
from selsync_jax.runs.history import Run

REPORT = 'report.html'


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
    more: figures to add.
    columns: whether the figures are also files for a paper's column.
  """
  runs = history.read_all(workdirs)
  figures = [*plots.all_plots(runs), *more]
  image_files.write(figures, out)
  if columns:
    image_files.write_columns(figures, out)
  title = facts.headline(runs)
  subtitle = '; '.join(facts.description(run) for run in runs)
  sections = list(map(page.figure, figures))
  shown = {run.name: facts.facts(_shown_outcome(run)) for run in runs}
  summary = page.table('summary', 'Summary', _rows(shown))
  if len(runs) > 1:
    sections = [summary, *sections]
  else:
    key_figures = page.key_figures(_key_figures(runs[0]))
    sections = [key_figures, *sections, summary]
  footer = page.footer(filter(None, map(facts.origin, runs)))
  sections += [_config(runs), footer]
  return page.write(out / REPORT, title, subtitle, sections)


def _shown_outcome(run: Run) -> dict[str, Any]:
  """Returns the outcome without scores that are not worth showing."""
  return {
    field: value
    for field, value in run.outcome.items()
    if not history.is_score(field) or run.shows(field.partition('_')[2])
  }


def _config(runs: Sequence[Run]) -> Markup:
  """Returns the table of the configs, with defaults folded away."""
  fields = {run.name: flat(run.config).items() for run in runs}
  rows = _rows(
    {
      name: {k: Cell(None, _shown(v)) for k, v in own}
      for name, own in fields.items()
    }
  )
  defaults = {name: _shown(field.default) for name, field in FIELDS.items()}
  texts = {
    name: {cell.text for cell in row.values()} for name, row in rows.items()
  }
  names = sorted(
    rows, key=lambda name: len(texts[name]) == 1
  )  # Differences first.
  folded = [name for name in names if texts[name] <= {defaults.get(name), '–'}]
  return page.table(
    'config',
    'Config',
    {name: rows[name] for name in names if name not in folded},
    'field',
    f'{len(folded)} fields that have their default',
    {name: rows[name] for name in folded},
  )


def _shown(value: Any) -> str:
  """Returns a field as the table shows it; a tuple is a list in JSON."""
  if value is None:
    return '–'
  return str(list(value) if isinstance(value, tuple) else value)


def _rows(columns: Mapping[str, Mapping[str, Cell]]) -> Table:
  """Returns the table with these columns; some may lack a row."""
  names = dict.fromkeys(name for column in columns.values() for name in column)
  return {
    name: {run: column.get(name, NONE) for run, column in columns.items()}
    for name in names
  }


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
