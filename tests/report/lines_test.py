"""Lines thinned for the screen."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np

from selsync_jax.report import figure


@given(
  st.lists(st.floats(0, 1) | st.just(float('nan')), max_size=200),
  st.integers(1, 20),
)
def test_a_thinned_line_keeps_its_extremes_and_invents_nothing(values, buckets):
  y = np.array(values, float)
  kept = figure.envelope(y, buckets)
  known = y[~np.isnan(y)]
  assert (np.diff(kept) > 0).all()
  assert len(kept) <= max(2 * buckets + 2, min(len(known), 2 * buckets))
  assert not np.isnan(y[kept]).any()
  if len(known):
    assert y[kept].min() == known.min() and y[kept].max() == known.max()
    assert y[kept][0] == known[0] and y[kept][-1] == known[-1]
  if len(known) <= 2 * buckets:
    np.testing.assert_array_equal(y[kept], known)


@given(
  st.lists(
    st.lists(
      st.floats(0, 1) | st.sampled_from([np.nan, np.inf]),
      min_size=2,
      max_size=2,
    ),
    min_size=1,
    max_size=60,
  ),
  st.integers(1, 20),
)
def test_a_band_from_0_to_1_holds_every_value(rows, buckets):
  y = np.array(rows, float)
  at, peak, (low, middle, high) = figure.quantiles(y, buckets, (0, 0.5, 1))
  known = ~np.isnan(y).all(axis=1)
  assert len(at) == min(buckets, known.sum())
  assert (low <= middle).all() and (middle <= high).all()
  assert set(low) | set(middle) | set(high) <= set(y[~np.isnan(y)])
  if len(at):
    assert low.min() == np.nanmin(y) and high.max() == np.nanmax(y)
    np.testing.assert_array_equal(np.nanmax(y[peak], axis=1), high)
