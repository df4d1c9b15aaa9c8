"""Lines that are thinned for the screen."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from selsync_jax.report import figure
from selsync_jax.report import palette
from selsync_jax.runs.history import Run


def envelope(
  y: Float[np.ndarray, 'points'], buckets: int
) -> Int[np.ndarray, 'kept']:
  """Selects the points of a long line to draw: the extremes of each bucket.

  Every spike is kept, and so are all points if there are at most two per
  bucket.

  Args:
    y: the values of the line; NaN means no point.
    buckets: about half the width of the panel in pixels.

  Returns:
    Ascending indices of points.
  """
  (known,) = np.nonzero(~np.isnan(y))
  if len(known) <= 2 * buckets:
    return known
  keep = {known[0], known[-1]}
  for part in _split(known, buckets):
    keep |= {part[np.argmin(y[part])], part[np.argmax(y[part])]}
  return np.array(sorted(keep))


def of_runs(runs: Sequence[Run], field: str, buckets: int) -> list[figure.Line]:
  """Returns a field of each run over its steps, as lines of the palette.

  Args:
    runs: the runs.
    field: the name of a field of their rows.
    buckets: about half the width of the panel in pixels.
  """
  marks = []
  for i, run in enumerate(runs):
    y = run.column(field)
    kept = envelope(y, buckets)
    x = run.column('step')[kept]
    marks.append(figure.Line(run.name, x, y[kept], palette.series(i)))
  return marks


class Quantiles(NamedTuple):
  """Quantiles of long or many lines, in buckets of points.

  Attributes:
    at: the index of the point in the middle of each bucket.
    peak: the index of the point with the largest value of each bucket.
    values: a line for each quantile.
  """

  at: Int[np.ndarray, 'buckets']
  peak: Int[np.ndarray, 'buckets']
  values: Float[np.ndarray, 'quantiles buckets']


def quantiles(
  lines: Float[np.ndarray, 'points lines'],
  buckets: int,
  shares: Sequence[float],
) -> Quantiles:
  """Computes quantiles over all values of each bucket.

  Args:
    lines: the values of all lines; NaN means no point, infinity is a value.
    buckets: the largest number of buckets.
    shares: the share of values below each quantile.
  """
  (known,) = np.nonzero(~np.isnan(lines).all(axis=1))
  parts = _split(known, min(buckets, len(known)))
  values = []
  for part in parts:
    each = np.sort(lines[part], axis=None)  # NaN comes last.
    last = np.count_nonzero(~np.isnan(each)) - 1
    values.append(each[np.rint(np.multiply(shares, last)).astype(int)])
  return Quantiles(
    at=np.array([part[len(part) // 2] for part in parts], int),
    peak=np.array(
      [part[np.nanargmax(np.nanmax(lines[part], axis=1))] for part in parts],
      int,
    ),
    values=np.reshape(values, (len(parts), len(shares))).T,
  )


def _split(known, buckets):
  if not buckets:
    return []
  return np.split(known, np.arange(1, buckets) * len(known) // buckets)
