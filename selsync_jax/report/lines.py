"""Lines that are thinned for the screen."""

from collections.abc import Sequence

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


def quantiles(
  lines: Float[np.ndarray, 'points lines'],
  buckets: int,
  shares: Sequence[float],
) -> tuple[
  Int[np.ndarray, 'buckets'],
  Int[np.ndarray, 'buckets'],
  Float[np.ndarray, 'shares buckets'],
]:
  """Computes quantiles over all values of each of at most so many buckets.

  The result is the point in the middle of each bucket, the point with its
  largest value, and its quantiles. NaN means no point, infinity is a value.
  """
  (known,) = np.nonzero(~np.isnan(lines).all(axis=1))
  parts = _split(known, min(buckets, len(known)))
  peaks = [part[np.nanargmax(np.nanmax(lines[part], axis=1))] for part in parts]
  values = []
  for part in parts:
    each = np.sort(lines[part], axis=None)  # NaN comes last.
    last = np.count_nonzero(~np.isnan(each)) - 1
    values.append(each[np.rint(np.multiply(shares, last)).astype(int)])
  middles = [part[len(part) // 2] for part in parts]
  quantiles = np.reshape(values, (len(parts), len(shares))).T
  return np.array(middles, int), np.array(peaks, int), quantiles


def _split(known, buckets):
  if not buckets:
    return []
  return np.split(known, np.arange(1, buckets) * len(known) // buckets)
