"""The figures of a report, in their order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import re

from selsync_jax.report import changes_plot, delta_plot, metric_plot, run_plots
from selsync_jax.report.figure import Plot
from selsync_jax.runs.history import Run

Draw = Callable[[Sequence[Run]], Plot | None]
"""Draws one figure of some runs, or nothing if they lack the data for it."""

# Figures that show all runs; the metrics follow the first of them.
_TOGETHER: Sequence[Draw] = (
  run_plots.communication,
  run_plots.reported,
  run_plots.staleness,
)
# Figures of a single run: of its workers' behavior, and of their data.
_BEHAVIOR: Sequence[Draw] = (
  run_plots.timeline,
  changes_plot.plot,
  delta_plot.plot,
)
_DATA: Sequence[Draw] = (run_plots.labels,)


def all_plots(runs: Sequence[Run]) -> list[Plot]:
  """Returns every figure for which these runs have data."""
  alone, groups = len(runs) == 1, {run.name: [run] for run in runs}
  behavior, data = ([*_of_each(runs, each)] for each in (_BEHAVIOR, _DATA))
  shared = _together(
    runs,
    metric_plot.of_run(*runs) if alone else metric_plot.of_groups(groups),
  )
  if alone and runs[0].threshold is not None:  # The changes decide.
    return [*behavior, *shared, *data]
  return [*shared, *behavior, *data]


def shared_plots(groups: metric_plot.Groups) -> list[Plot]:
  """Returns the figures that show all runs, grouped by entry of the legend."""
  about = ''
  if max(map(len, groups.values())) > 1:
    about = ' One seed of each method.'
  firsts = [runs[0] for runs in groups.values()]
  return _together(firsts, metric_plot.of_groups(groups), about)


def _together(
  runs: Sequence[Run], metrics: Iterable[Plot], about: str = ''
) -> list[Plot]:
  first, *rest = (
    dataclasses.replace(plot, caption=plot.caption + about)
    for draw in _TOGETHER
    if (plot := draw(runs))
  )
  return [first, *metrics, *rest]


def _of_each(runs: Sequence[Run], draws: Sequence[Draw]) -> Iterator[Plot]:
  """Yields figures of each run, named after it if there are several runs."""
  for run in runs:
    for plot in filter(None, (draw([run]) for draw in draws)):
      if len(runs) == 1:
        yield plot
        continue
      own = re.sub(r'[^\w.-]', '-', run.name)
      name, title = f'{plot.name}-{own}', f'{plot.title}: {run.name}'
      yield dataclasses.replace(plot, name=name, title=title)
