"""Lines that are thinned for the screen."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np


def envelope(
  y: Float[np.ndarray, 'points'], buckets: int
) -> Int[np.ndarray, 'kept']:
  """Selects the points of a long line to draw: the extremes of each bucket.

  Every spike is kept, and so are all points if there are at most two per
  bucket. A panel of n pixels needs about n / 2 buckets. NaN means no point.
  """
  (known,) = np.nonzero(~np.isnan(y))
  if len(known) <= 2 * buckets:
    return known
  keep = {known[0], known[-1]}
  for part in _split(known, buckets):
    keep |= {part[np.argmin(y[part])], part[np.argmax(y[part])]}
  return np.array(sorted(keep))


class Quantiles(NamedTuple):
  """Quantiles of long or many lines, in buckets of points."""

  at: Int[np.ndarray, 'buckets']  # The point in the middle of each bucket.
  peak: Int[np.ndarray, 'buckets']  # The point with its largest value.
  values: Float[np.ndarray, 'quantiles buckets']


def quantiles(
  lines: Float[np.ndarray, 'points lines'],
  buckets: int,
  shares: Sequence[float],
) -> Quantiles:
  """Computes quantiles over all values of each of at most so many buckets.

  A share of the values lies below its quantile. NaN means no point, and
  infinity is a value.
  """
  (known,) = np.nonzero(~np.isnan(lines).all(axis=1))
  parts = _split(known, min(buckets, len(known)))
  peaks = [part[np.nanargmax(np.nanmax(lines[part], axis=1))] for part in parts]
  values = []
  for part in parts:
    each = np.sort(lines[part], axis=None)  # NaN comes last.
    last = np.count_nonzero(~np.isnan(each)) - 1
    values.append(each[np.rint(np.multiply(shares, last)).astype(int)])
  return Quantiles(
    at=np.array([part[len(part) // 2] for part in parts], int),
    peak=np.array(peaks, int),
    values=np.reshape(values, (len(parts), len(shares))).T,
  )


def _split(known, buckets):
  if not buckets:
    return []
  return np.split(known, np.arange(1, buckets) * len(known) // buckets)
