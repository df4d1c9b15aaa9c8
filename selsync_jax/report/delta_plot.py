"""LSSR as a function of delta, counted on the changes that a run recorded."""

import math

from jaxtyping import Float
import numpy as np

from selsync_jax.report import figure
from selsync_jax.runs.history import Run

_POINTS = 240  # The largest number of points of the curve.
_WANTED = (0.5, 0.8, 0.9, 0.95)  # LSSRs whose delta the caption names.


def plot(run: Run) -> figure.Plot | None:
  """Plots the LSSR of each delta of one run.

  Returns `None` if the run is not in lockstep, or has recorded no finite change
  above 0.
  """
  if 'relative_changes_quantiles' not in run.rows[-1] or not run.is_lockstep:
    return None
  sync = run.config['sync']
  sync = {**sync, **sync.get('trigger', {})}
  vote_every, max_period = sync.get('vote_every') or 1, sync.get('max_period')
  decide = deciding(run.changes, sync.get('quorum'), vote_every)
  positive = decide[np.isfinite(decide) & (decide > 0)]
  if not len(positive):
    return None
  shares = np.linspace(0, 1, _POINTS)
  deltas = np.unique(np.quantile(positive, shares, method='nearest'))
  curve = np.array([lssr(decide, x, vote_every, max_period) for x in deltas])
  look = figure.series(0)._replace(marker='')
  ends, own = (-math.inf, math.inf), [run.outcome['lssr']] * 2
  marks = [
    figure.Line('LSSR', deltas, curve, look, 'pre', '{y} with delta {x}'),
    figure.Line("this run's LSSR", ends, own, figure.DOTTED, hover=''),
  ]
  read = [
    f'delta {deltas[np.argmax(curve >= wanted)]:.4g} for {wanted:g}'
    for wanted in _WANTED
    if curve[0] <= wanted <= curve[-1]
  ]
  sentences = {
    'The share of steps that stay local with each fixed delta, counted on the '
    'changes that this run recorded.': True,
    f'The synchronizations that max_period = {max_period} forces are '
    'included.': max_period,
    f'To keep that share local: {", ".join(read)}.': read,
    'Workers that synchronize less often see other gradients, so the page of a '
    'run with the new delta says more.': True,
  }
  caption = figure.caption(sentences)
  title = 'LSSR (local steps / steps)'
  x = figure.Axis(label='delta (no unit)', log=True)
  panels = [figure.Panel(title, x, figure.SHARE, marks, 240)]
  return figure.Plot('delta', 'LSSR for each delta', caption, panels)


def deciding(
  changes: Float[np.ndarray, 'steps workers'],
  quorum: float | None = None,
  vote_every: int = 1,
) -> Float[np.ndarray, 'votes']:
  """Returns the change that decides each vote.

  Any delta up to this change synchronizes. It is the largest relative change of
  all workers; with a quorum of k workers, the k-th largest. A vote on several
  steps uses each worker's largest change. NaN is an unknown change, which
  reaches no delta.
  """
  steps, workers = changes.shape
  voted = steps // vote_every * vote_every
  known = np.where(np.isnan(changes), -np.inf, changes)[:voted]
  ballots = known.reshape(-1, vote_every, workers).max(axis=1)
  needed = max(1, math.ceil((quorum or 0) * workers - 1e-9))
  return np.sort(ballots, axis=1)[:, -needed]


def lssr(
  deciding: Float[np.ndarray, 'votes'],
  delta: float,
  vote_every: int = 1,
  max_period: int | None = None,
) -> float:
  """Returns the share of steps that a fixed delta leaves local.

  After `max_period` local steps, the next vote always synchronizes.
  """
  synced = deciding >= delta
  if max_period:
    vote = np.arange(len(synced))
    last = np.maximum.accumulate(np.where(synced, vote, -1))
    synced |= (vote - last) % math.ceil(max_period / vote_every) == 0
  return float(1 - synced.mean() / vote_every)
