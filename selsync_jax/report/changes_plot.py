"""The relative gradient changes of every worker, and its votes."""

from jaxtyping import Float, Int
import numpy as np

from selsync_jax.report import figure
from selsync_jax.runs.history import Run

STRIPS = 16  # The largest number of workers that get a strip each.
_BUCKETS = 480  # The largest number of points of a band; bars: twice as many.

_CHANGE = figure.Look('blue', width=1)
_DELTA = figure.Look('ink', width=1, dash=(4, 2))
_VOTE = figure.Look('vermillion', width=0, marker='^', size=5)
_VOTES = 'votes to synchronize'


def plot(run: Run) -> figure.Plot | None:
  """Plots Δ(g) of each worker, delta, and synchronized steps (figure 5)."""
  if 'relative_changes_quantiles' not in run.rows[-1]:
    return None
  step, changes = run.columns['step'], run.changes
  x = figure.Axis((step[0] - 0.5, step[-1] + 0.5), 'steps', ticks=8, whole=True)
  y = figure.Axis(_limits(changes, run.threshold), log=True)
  ends, workers = figure.Axis((0, 1), ticks=0), changes.shape[1]
  panels = [figure.Panel('synchronized', x, ends, [_synced(run)], 16)]
  if workers > STRIPS:
    bands = {'all workers': 'sky', 'half of the workers': 'blue'}
    marks = _marks(run, changes, bands, 'median worker', y)
    panels.append(figure.Panel(f'Δ(g) of {workers} workers', x, y, marks, 240))
  else:
    bands, height = {}, figure.strip_height(workers)
    if len(step) > 2 * _BUCKETS:  # Several steps share a pixel.
      bands = {'smallest to largest': 'blue'}
    for i in range(workers):
      name, own = f'worker {i}: ', changes[:, [i]]
      marks = _marks(run, own, bands, 'relative change', y, name)
      panels.append(figure.Panel(f'{name}Δ(g)', x, y, marks, height))
  title = 'When workers synchronize'
  if run.threshold is None:
    title = 'Gradient changes'
  return figure.Plot('changes', title, _caption(run), panels, 0)


def _caption(run: Run) -> str:
  delta, every = run.threshold, run.config['log']['every']
  bound = run.config['sync'].get('max_period')
  votes = 'delta (dashed), which the budget moves,'
  if delta is not None and np.all(delta == delta[0]):
    votes = f'delta = {delta[0]:g}' + ' (dashed)' * bool(np.isfinite(delta[0]))
  sentences = {
    'Relative gradient change of each worker at each step, without unit, on a '
    'logarithmic axis.': True,
    'No threshold is recorded, so the figure does not say why the workers '
    'synchronized.': delta is None,
    f'A worker that reaches {votes} votes to synchronize (triangle). A '
    'triangle at the upper edge is an infinite change: there was no earlier '
    'gradient to compare with.': delta is not None,
    f'After {bound} steps without a synchronization the workers synchronize, '
    'whatever their changes.': bound,
    'Bars on top: the steps that synchronized. Where many steps share a bar, '
    'its height is the share of them that did.': True,
    f'One step in {every} is logged.': every > 1,
    'With this many workers: their median, the half of them around it, and all '
    'of them.': run.changes.shape[1] > STRIPS,
    'Where several steps share a pixel, the line is their median, and the band '
    'holds all of them.': run.changes.shape[1] <= STRIPS
    and len(run.rows) > 2 * _BUCKETS,
  }
  return figure.caption(sentences)


def _marks(
  run: Run,
  changes: Float[np.ndarray, 'rows lines'],
  bands: dict[str, str],
  middle: str,
  y: figure.Axis,
  label: str = '',
) -> list[figure.Mark]:
  """Returns bands by name and color, the median line, and the votes.

  The first band covers all changes, a second one the middle half of them.
  Without bands, the line has every finite change.
  """
  cuts = [0, 0.25][: len(bands)]
  shares = [*cuts, 0.5, *(1 - cut for cut in reversed(cuts))]
  buckets = _BUCKETS if bands else len(run.rows)
  at, peak, values = figure.quantiles(changes, buckets, shares)
  step = run.columns['step'][at]
  if bands:
    values = np.clip(values, *y.limits)
  else:
    values = np.where(np.isfinite(values), values, np.nan)
  marks: list[figure.Mark] = []
  for i, (name, color) in enumerate(bands.items()):
    low, high = values[i], values[-1 - i]
    hover = f'{label}{name}: {{low}} to {{high}}'
    marks.append(figure.Band(name, step, low, high, color, hover))
  hover, half = f'{label}{{y}}', values[len(bands)]
  marks.append(figure.Line(middle, step, half, _CHANGE, hover=hover))
  return marks + _votes(run, np.fmax.reduce(changes, axis=1), peak, y, label)


def _votes(
  run: Run,
  change: Float[np.ndarray, 'rows'],
  shown: Int[np.ndarray, 'shown'],
  y: figure.Axis,
  label: str,
) -> list[figure.Mark]:
  """Returns the threshold, and a triangle wherever it is reached."""
  if run.threshold is None:
    return []
  step, threshold = run.columns['step'], run.threshold
  marks: list[figure.Mark] = []
  if not np.isinf(threshold).all():
    x, delta = step[shown], threshold[shown]
    marks.append(figure.Line('delta', x, delta, _DELTA, hover=''))
  reached = shown[change[shown] >= threshold[shown]]
  infinite = np.isinf(change[reached])
  for at, hover in (
    (reached[~infinite], ''),  # The line has a hover text.
    (reached[infinite], f'{label}infinite at step {{x}}'),
  ):
    edge = np.minimum(change[at], 0.98 * y.limits[1])  # Inside the panel.
    marks.append(figure.Line(_VOTES, step[at], edge, _VOTE, hover=hover))
  return marks


def _limits(changes, threshold):
  """Returns limits around 0.1, delta, and nearly all changes."""
  known = changes[np.isfinite(changes) & (changes > 0)]
  delta = 0 if threshold is None else np.median(threshold)
  known = np.append(known, [0.1, delta if 0 < delta < np.inf else 0.1])
  return min(np.percentile(known, 2), 0.1) / 2, known.max() * 2


def _synced(run: Run) -> figure.Bars:
  """Returns bars whose height is the share of steps that synchronized."""
  step = run.columns['step']
  step = np.concatenate([[step[0] - 1], step])
  syncs = np.concatenate([[0], run.sync_steps])
  if run.rows[0]['step'] > 1:  # Earlier steps are unknown.
    syncs[0] = syncs[1]
  cuts = np.unique(np.linspace(0, len(step) - 1, 2 * _BUCKETS + 1).astype(int))
  edges = step[cuts] + 0.5
  share = np.diff(syncs[cuts]) / np.diff(step[cuts])
  middles, widths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
  x, y, widths = (values[share > 0] for values in (middles, share, widths))
  hover = 'synchronized: {y} of the steps'
  return figure.Bars('synchronized', x, y, widths, 'vermillion', hover)
