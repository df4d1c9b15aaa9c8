"""The figures of a report, in their order."""

from collections.abc import Mapping, Sequence
import re

from selsync_jax.report import bar_plots
from selsync_jax.report import changes_plot
from selsync_jax.report import metric_plot
from selsync_jax.report import step_plots
from selsync_jax.report.figure import Plot
from selsync_jax.runs import siblings
from selsync_jax.runs.history import Run

_NON_IID = ('by_label', 'dirichlet')  # Partitions that are uneven on purpose.


def all_plots(runs: Sequence[Run]) -> list[Plot]:
  """Returns every figure for which these runs have data."""
  if len(runs) == 1:
    (run,) = runs
    bsp = siblings.find_bsp(run)
    metrics = [metric_plot.of_run(run, name, bsp) for name in run.metrics]
    return [*_behavior(run), *_shared(runs, metrics), *_labels(run)]
  plots = shared_plots({run.name: [run] for run in runs})
  for of_run in (_behavior, _labels):
    plots += [_named_after(run, plot) for run in runs for plot in of_run(run)]
  return plots


def shared_plots(groups: Mapping[str, Sequence[Run]]) -> list[Plot]:
  """Returns the figures that show all runs together.

  A group is the runs of a method, one for each seed, by entry of the legend.
  """
  names = dict.fromkeys(
    name for runs in groups.values() for run in runs for name in run.metrics
  )
  metrics = [metric_plot.of_groups(groups, name) for name in names]
  shared = _shared([runs[0] for runs in groups.values()], metrics)
  if max(map(len, groups.values())) > 1:
    seed = ' One seed of each method.'
    shared = [
      plot if plot in metrics else plot._replace(caption=plot.caption + seed)
      for plot in shared
    ]
  return shared


def _shared(runs: Sequence[Run], metrics: Sequence[Plot]) -> list[Plot]:
  stale = [run for run in runs if run.outcome.get('staleness')]
  stale = [run for run in stale if _has(run, 'staleness')]
  rated = [run for run in runs if 'lr' in run.rows[-1]]
  return [
    step_plots.communication(runs),
    *metrics,
    *([step_plots.learning_rate(rated)] if rated else []),
    *([bar_plots.staleness(stale)] if stale else []),
  ]


def _behavior(run: Run) -> list[Plot]:
  shown = run.is_simulated and _has(run, 'spans')
  timeline = [bar_plots.timeline(run)] if shown else []
  changes = [changes_plot.plot(run)] if run.is_lockstep else []
  return timeline + changes


def _has(run: Run, column: str) -> bool:
  return any(map(len, run.values(column)))


def _labels(run: Run) -> list[Plot]:
  uneven = run.config['data']['partition'] in _NON_IID
  counts = run.label_counts
  return [bar_plots.labels(counts)] if uneven and counts is not None else []


def _named_after(run, plot):
  """Renames a figure of one run for a page of several."""
  name, title = re.sub(r'[^\w.-]', '-', run.name), f'{plot.title}: {run.name}'
  return plot._replace(name=f'{plot.name}-{name}', title=title)
