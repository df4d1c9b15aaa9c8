"""The page of a run, or of several: headline, key figures, plots, tables."""

from collections.abc import Sequence
import dataclasses
import pathlib

from selsync_jax.report import (
  changes_plot,
  delta_plot,
  facts,
  figure,
  image_files,
  metric_plot,
  page,
  run_plots,
)
from selsync_jax.runs import history
from selsync_jax.runs.history import Run

REPORT = 'report.html'
# Figures that show all runs; the metrics follow the first of them.
_TOGETHER = run_plots.communication, run_plots.reported, run_plots.staleness
# Figures of the behavior of a single run's workers.
_BEHAVIOR = run_plots.timeline, changes_plot.plot, delta_plot.plot


def write(
  workdirs: Sequence[pathlib.Path],
  out: pathlib.Path,
  more: Sequence[figure.Plot] = (),
  columns: bool = False,
) -> pathlib.Path:
  """Writes the page of runs, finished or not, with `more` figures.

  It returns the path of the page. With `columns`, the figures are also files
  for a paper's column.
  """
  runs = history.read_all(workdirs)
  subtitle = '; '.join(map(facts.description, runs))
  numbers = facts.summary(runs)
  config, defaults = facts.settings(runs)
  title = facts.headline(runs)
  origins = filter(None, map(facts.origin, runs))
  figures = [*_plots(runs), *more]
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


def shared_plots(groups: metric_plot.Groups) -> list[figure.Plot]:
  """Returns the figures that show all runs, grouped by entry of the legend."""
  about = ''
  if max(map(len, groups.values())) > 1:
    about = ' One seed of each method.'
  first, *rest = _together([runs[0] for runs in groups.values()], about)
  return [first, *metric_plot.of_groups(groups), *rest]


def _plots(runs: Sequence[Run]) -> list[figure.Plot]:
  """Returns every figure for which these runs have data."""
  first, *rest = _together(runs)
  if len(runs) > 1:
    groups = {run.name: [run] for run in runs}
    return [first, *metric_plot.of_groups(groups), *rest]
  (run,) = runs
  behavior = [plot_of(run) for plot_of in _BEHAVIOR]
  # The changes decide if there is a threshold.
  before, after = ([], behavior) if run.threshold is None else (behavior, [])
  metrics = metric_plot.of_run(run)
  figures = *before, first, *metrics, *rest, *after, run_plots.labels(run)
  return [plot for plot in figures if plot]


def _together(runs: Sequence[Run], about: str = '') -> list[figure.Plot]:
  return [
    dataclasses.replace(plot, caption=plot.caption + about)
    for plot_of in _TOGETHER
    if (plot := plot_of(runs))
  ]
