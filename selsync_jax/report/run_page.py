"""The page of a run, or of several: headline, key figures, plots, tables."""

from collections.abc import Sequence
import pathlib

from selsync_jax.report import facts, figure, image_files, page, plots
from selsync_jax.runs import history

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
  title = facts.headline(runs)
  subtitle = '; '.join(map(facts.description, runs))
  numbers = facts.summary(runs)
  config, defaults = facts.settings(runs)
  origins = filter(None, map(facts.origin, runs))
  figures = [*plots.all_plots(runs), *more]
  image_files.write(figures, out, columns=columns)
  sections = [page.figure(plot) for plot in figures]
  summary = page.table('summary', 'Summary', numbers)
  if len(runs) > 1:
    sections.insert(0, summary)
  else:
    top = page.key_figures(facts.key_figures(runs[0]))
    sections = [top, *sections, summary]
  folded = f'{len(defaults)} fields that have their default'
  sections += [
    page.table('config', 'Config', config, 'field', folded, defaults),
    page.footer(origins),
  ]
  return page.write(out / REPORT, title, subtitle, sections)
