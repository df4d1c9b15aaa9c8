"""The page of a run, or of several: headline, key figures, plots, tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import pathlib
from typing import Any

from markupsafe import Markup

from selsync_jax.config import flat
from selsync_jax.report import facts
from selsync_jax.report import headline
from selsync_jax.report import origin
from selsync_jax.report import page
from selsync_jax.report import plots
from selsync_jax.report import png
from selsync_jax.report.facts import Fact
from selsync_jax.report.figure import Plot
from selsync_jax.runs import files
from selsync_jax.runs import history
from selsync_jax.runs.history import Run

REPORT = 'report.html'


def write(workdirs: Sequence[pathlib.Path], out: pathlib.Path) -> pathlib.Path:
  """Writes the page of these runs, and its figures beside it.

  Args:
    workdirs: the runs' folders; the runs may be unfinished.
    out: the page's folder, which is created if it is missing.

  Returns:
    The page's path.

  Raises:
    ConfigError: if a workdir holds no run.
  """
  runs = history.read_all(workdirs)
  figures = plots.all_plots(runs)
  png.write(figures, out)
  path = out / REPORT
  files.write(path, _page(runs, figures))
  return path


def _page(runs: Sequence[Run], figures: Sequence[Plot]) -> str:
  title = headline.headline(runs)
  subtitle = '; '.join(headline.description(run) for run in runs)
  sections = [page.figure(figure) for figure in figures]
  summary = _summary_table(runs)
  if len(runs) > 1:
    sections = [summary, *sections]
  else:
    key_figures = page.key_figures(_key_figures(runs[0]))
    sections = [key_figures, *sections, summary]
  footer = page.footer(filter(None, map(origin.line, runs)))
  body = [page.header(title, subtitle), *sections, _config_table(runs), footer]
  return page.page(title, body)


def _summary_table(runs):
  columns = [
    {fact.name: fact for fact in facts.facts(run.outcome)} for run in runs
  ]
  names = [run.name for run in runs]
  rows = _rows(columns, _fact_cell)
  return page.table('summary', 'Summary', ['', *names], rows)


def _config_table(runs):
  columns = [flat(run.config) for run in runs]
  rows = _rows(columns, lambda value: '–' if value is None else str(value))
  rows.sort(key=lambda row: len(set(row[1])) == 1)  # Differences come first.
  names = [run.name for run in runs]
  return page.table('config', 'Config', ['field', *names], rows)


def _rows(
  columns: Sequence[Mapping[str, Any]], cell: Callable[[Any], str]
) -> list[tuple[str, list[str]]]:
  names = dict.fromkeys(name for column in columns for name in column)
  return [(name, [cell(c.get(name)) for c in columns]) for name in names]


def _fact_cell(fact: Fact | None) -> str:
  return page.number(fact.value, fact.text) if fact else '–'


def _key_figures(run: Run) -> Iterator[tuple[str, str, str]]:
  """Yields name, number and remark of the numbers at the top of the page."""
  outcome = run.outcome
  cell = {fact.name: _fact_cell(fact) for fact in facts.facts(outcome)}
  if metric := run.metric:
    value = outcome[f'validation_{metric}']
    yield (
      f'validation {metric}',
      page.number(value, f'{value:.4f}'),
      Markup('loss {}').format(cell.get('validation loss', 'not finite')),
    )
  if 'lssr' in outcome:
    yield (
      'LSSR',
      cell['LSSR (local steps / steps)'],
      Markup('{} of {} steps synchronized').format(
        cell['synchronizations'], cell['steps']
      ),
    )
  bsp = cell.get('the same run under BSP')
  yield (
    'sent per worker',
    cell['bytes sent per worker'],
    Markup('{} under BSP').format(bsp)
    if bsp
    else 'BSP: known when the run is finished',
  )
  if 'virtual seconds' in cell:
    waited = cell.get('of these, waiting for other workers', '–')
    yield (
      'virtual seconds',
      cell['virtual seconds'],
      Markup('{} waiting for other workers').format(waited),
    )
    return
  yield (
    'seconds of training',
    cell['seconds'],
    Markup('{} samples/s').format(cell.get('samples/s', '–')),
  )
