"""The figures of a report, in their order."""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import glob
import pathlib
import re
from typing import Any

from selsync_jax.config import ConfigError, RunError
from selsync_jax.fields import completed
from selsync_jax.report import changes_plot, delta_plot, metric_plot, run_plots
from selsync_jax.report.figure import Plot
from selsync_jax.runs import files, history, ledger, records
from selsync_jax.runs.history import Run

# Sections of a config that do not change what is trained.
_IRRELEVANT = ('sync', 'checkpoint', 'log')
# Columns of built-in parts that have no figure of their own.
_UNDRAWN = {'budget_threshold', 'senders', 'renewed'}
_NON_IID = ('by_label', 'dirichlet')  # Partitions that are uneven on purpose.


def all_plots(runs: Sequence[Run]) -> list[Plot]:
  """Returns every figure for which these runs have data."""
  if len(runs) == 1:
    (run,) = runs
    bsp = find_bsp(run)
    metrics = [metric_plot.of_run(run, name, bsp) for name in run.metrics]
    first, last = _behavior(run), _labels(run)
    if run.threshold is None:  # The changes decide nothing.
      first, last = [], [*first, *last]
    return [*first, *_shared(runs, metrics), *last]
  plots = shared_plots({run.name: [run] for run in runs})
  for of_run in (_behavior, _labels):
    plots += [_named_after(run, plot) for run in runs for plot in of_run(run)]
  return plots


def shared_plots(groups: Mapping[str, Sequence[Run]]) -> list[Plot]:
  """Returns the figures that show all runs, grouped by entry of the legend."""
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
  columns = dict.fromkeys(column for run in runs for column in run.rows[-1])
  fields = _reported(runs, columns)
  stale = [run for run in runs if run.outcome.get('staleness')]
  stale = [run for run in stale if _has(run, 'staleness')]
  return [
    run_plots.communication(runs),
    *metrics,
    *([run_plots.learning_rate(runs)] if 'lr' in columns else []),
    *([run_plots.selection(runs)] if 'selection' in columns else []),
    *([run_plots.reported(runs, fields)] if fields else []),
    *([run_plots.staleness(stale)] if stale else []),
  ]


def _reported(runs: Sequence[Run], columns: Iterable[str]) -> list[str]:
  """Returns the columns that no other figure draws."""
  drawn = {name for run in runs for name in run.metrics}
  drawn |= ledger.COLUMNS - _UNDRAWN
  return [
    column
    for column in columns
    if column not in drawn
    and not column.endswith('_quantiles')
    and not history.is_score(column)
    and all(run.shows(column) for run in runs)
  ]


def _behavior(run: Run) -> list[Plot]:
  shown = run.is_simulated and _has(run, 'spans')
  timeline = [run_plots.timeline(run)] if shown else []
  if 'relative_changes_quantiles' not in run.rows[-1]:
    return timeline
  lssr = [delta_plot.plot(run)] if run.is_lockstep else []
  return [*timeline, changes_plot.plot(run), *filter(None, lssr)]


def _has(run: Run, column: str) -> bool:
  return any(map(len, run.values(column)))


def _labels(run: Run) -> list[Plot]:
  counts = run.label_counts
  if counts is None or run.config['data']['partition'] not in _NON_IID:
    return []
  return [run_plots.labels(counts)]


def _named_after(run, plot):
  """Renames a figure of one run for a page of several."""
  name, title = re.sub(r'[^\w.-]', '-', run.name), f'{plot.title}: {run.name}'
  return plot._replace(name=f'{plot.name}-{name}', title=title)


def find_bsp(run: Run) -> Run | None:
  """Returns a run of BSP with otherwise the same config, if there is one.

  It searches the folders beside the run. In a comparison, whose folders are
  METHOD/SEED, it also searches the same seed's folders under other methods.
  """
  if run.config['sync']['method'] == 'bsp':
    return None
  workdir = run.workdir.resolve()
  folders = [
    *sorted(workdir.parent.glob('*/')),
    *sorted(workdir.parent.parent.glob(f'*/{glob.escape(workdir.name)}/')),
  ]
  return next(filter(None, (_bsp_like(run, each) for each in folders)), None)


def _bsp_like(run: Run, folder: pathlib.Path) -> Run | None:
  with contextlib.suppress(files.DamagedFile, ConfigError, RunError, OSError):
    config = records.read_config(folder)
    if config is None or history.composition(config['sync']) != 'bsp':
      return None
    if _relevant(config) == _relevant(run.config):
      other = history.read(folder)
      return other if other.is_simulated == run.is_simulated else None
  return None


def _relevant(config: Mapping[str, Any]) -> dict[str, Any]:
  fields = completed(config).items()
  return {k: v for k, v in fields if k.partition('.')[0] not in _IRRELEVANT}
