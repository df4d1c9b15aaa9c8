"""The age of the parameters from which gradients were computed."""

from collections.abc import Sequence

from jaxtyping import Float
import numpy as np

from selsync_jax.report import figure
from selsync_jax.report import palette
from selsync_jax.runs.history import Run

BINS = 40  # The largest number of bars.
LEAST = 4  # The smallest end of the axis.


def plot(runs: Sequence[Run]) -> figure.Plot:
  """Plots a histogram over all gradients of a run; lines for several runs."""
  ages = [_ages(run) for run in runs]
  top = max(LEAST, *(each.max() for each in ages))
  width = max(1, int(np.ceil((top + 1) / BINS)))
  edges = np.arange(0, top + 1 + width, width) - 0.5
  middles = (edges[:-1] + edges[1:]) / 2
  shares = [np.histogram(each, edges)[0] / len(each) for each in ages]
  marks: list[figure.Mark] = [
    figure.Line(run.name, middles, share, palette.series(i), steps='mid')
    for i, (run, share) in enumerate(zip(runs, shares, strict=True))
  ]
  if len(runs) == 1:
    widths = np.diff(edges)
    marks = [
      figure.Bars('share of gradients', middles, shares[0], widths, 'blue')
    ]
  return figure.Plot(
    'staleness',
    'Staleness of gradients',
    'How many updates the parameters received while a gradient was computed '
    'from their earlier version. It is 0 for methods whose workers take the '
    'same steps together.',
    [
      figure.Panel(
        'share of gradients',
        figure.Axis((edges[0], edges[-1]), 'updates in between', ticks=10),
        figure.from_zero(shares),
        marks,
      )
    ],
  )


def _ages(run: Run) -> Float[np.ndarray, 'gradients']:
  return np.concatenate(run.values('staleness')).astype(float)
