"""Figures: axes, colors, thinned lines, and the files that show them."""

import contextlib
import re
import zlib

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from selsync_jax.report import figure, image_files, interactive
from selsync_jax.report.figure import (
  Axis,
  Band,
  Bars,
  Line,
  Look,
  Name,
  Panel,
  Plot,
  Spans,
)


@pytest.mark.parametrize(
  'values, kind, log',
  [
    ([50, 10, 1], 'around', True),
    ([50, 10, 1, -5, -20], 'around', False),
    ([0.8, 0.1, 0.02], 'around', False),  # A loss near its end.
    ([0.8, 0.1, 0.02], 'cost', True),
  ],
)
def test_an_axis_is_logarithmic_only_if_that_shows_all_values(
  values, kind, log
):
  line = Line('', range(len(values)), values, Look('ink'))
  axis = Axis(kind=kind)
  axis = Plot('', '', '', [Panel('', Axis(), axis, [line])]).panels[0].y
  assert axis.log == log
  assert axis.limits[0] < min(values) and max(values) < axis.limits[1]


def test_panels_that_hold_the_same_axis_show_the_data_of_all():
  shared, look = Axis(kind='zero'), Look('ink')
  panels = [
    Panel('', shared, Axis(), [Line('', [0, end], [end, 2 * end], look)])
    for end in (1, 50)
  ]
  first, last = Plot('', '', '', panels).panels
  assert first.x.limits == last.x.limits == (0, 52)
  assert first.y.limits == (0.95, 2.05) and last.y.limits == (47.5, 102.5)


def test_a_line_to_infinity_ends_with_the_axis():
  look = Look('ink')
  lines = [Line('', [1, 2], [1, 2], look), Line('', [0, np.inf], [1, 1], look)]
  panel = Panel('', Axis(kind='zero'), Axis(), lines)
  (shown,) = Plot('', '', '', [panel]).panels
  assert list(shown.marks[1].x) == [0, shown.x.limits[1]]


@pytest.mark.parametrize('limits', [(-0.5, 2.5), (0, 1), (0, 9.5), (0, 5000)])
def test_an_axis_of_whole_numbers_has_no_ticks_between_them(limits):
  axis = Axis(limits, ticks=10, whole=True)
  plot = Plot('', '', '', [Panel('', axis, Axis((0, 1)), [])])
  ticks = image_files.draw(plot).axes[0].get_xticks()
  assert len(ticks) > 1 and (ticks == np.round(ticks)).all()
  shown = interactive.describe(plot)['wide']['xaxis1']
  if limits[1] - limits[0] <= 10:  # Plotly's steps are whole on a longer axis.
    assert (shown['tick0'], shown['dtick']) == (0, 1)


@pytest.mark.parametrize('count', [1, 30])
def test_names_stand_beside_their_points_without_overlap(count):
  points = np.random.default_rng(0).uniform(1, 100, (count, 2))
  names = [Name(f'method {i}', *each, '') for i, each in enumerate(points)]
  log, linear = Axis((1, 100), log=True), Axis((0, 100))
  panel = Panel(
    '', log, linear, [Line('', *points.T, Look('ink'))], names=names
  )
  drawn = image_files.draw(Plot('', '', '', [panel])).axes[0]
  boxes = [text.get_window_extent() for text in drawn.texts]
  assert len(boxes) > count / 2
  for i, box in enumerate(boxes):
    assert drawn.bbox.x0 <= box.x0 and box.x1 <= drawn.bbox.x1
    assert not any(box.overlaps(other) for other in boxes[:i])
  wide = interactive.describe(Plot('', '', '', [panel]))['wide']
  shown = [note['text'] for note in wide['annotations'][1:]]
  assert shown == [text.get_text() for text in drawn.texts]


def test_a_file_for_a_column_is_as_wide_and_its_text_can_be_read(tmp_path):
  x, look, axis = [0, 1], Look('ink'), Axis((0, 1), 'steps')
  marks = [Line(f'{i} {"word " * i}', x, x, look) for i in range(12)]
  panels = [Panel('loss', axis, axis, marks), Panel('', axis, axis, marks)]
  plot = Plot('loss', '', '', panels, 2)
  image_files.write([plot], tmp_path, formats=(), columns=True)
  content = (tmp_path / 'plots' / 'column' / 'loss.pdf').read_bytes()
  widths = re.findall(rb'/MediaBox \[ 0 0 ([0-9.]+)', content)
  assert [float(width) for width in widths] == [pytest.approx(72 * 3.3)] * 2
  # The operator that chooses a font: `/F1 SIZE Tf`, in compressed streams.
  streams = re.findall(rb'stream\r?\n(.*?)endstream', content, re.S)
  chosen = re.compile(rb'/F1 ([0-9.]+) Tf')
  sizes = [float(s) for each in streams for s in chosen.findall(inflated(each))]
  assert len(sizes) > 30 and min(sizes) >= 7


def inflated(stream):
  with contextlib.suppress(zlib.error):
    return zlib.decompress(stream)
  return b''


def test_a_file_has_the_legend_of_its_figure():
  """Matplotlib drops names that begin with an underscore."""
  x, look, axis = [0, 1], Look('ink'), Axis((0, 1))
  marks = [
    Band('_old', x, x, x, 'blue'),
    Line('_old', x, x, look),
    Line('new', x, x, look),
    Bars('_bars', x, x, x, 'blue'),
    Spans('$spans', x, x, x, 'blue', ['', ''], ''),
  ]
  plot = Plot('name', '', '', [Panel('', axis, axis, marks)])
  (legend,) = image_files.draw(plot).legends
  shown = [text.get_text() for text in legend.get_texts()]
  assert shown == ['_old', 'new', '_bars', r'\$spans']


@pytest.mark.parametrize('length', [1, 20, 55, 90])
def test_a_legend_of_many_names_stays_inside_its_figure(length):
  x, look, axis = [0, 1], Look('ink'), Axis((0, 1))
  marks = [Line(f'{i:0{length}}', x, x, look) for i in range(29)]
  drawn = image_files.draw(Plot('name', '', '', [Panel('', axis, axis, marks)]))
  (legend,) = drawn.legends
  box, panel = legend.get_window_extent(), drawn.axes[0].get_window_extent()
  assert box.x1 <= drawn.bbox.x1
  assert panel.y1 <= box.y0 and box.y1 <= drawn.bbox.y1


def luminance(color):
  """Relative luminance, as WCAG 2 defines it."""
  channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
  linear = np.where(
    channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
  )
  return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize('colors', [figure.LIGHT, figure.DARK])
def test_text_has_the_contrast_that_wcag_requires(colors):
  for name in ('ink', 'muted'):
    one, other = luminance(colors[name]), luminance(colors['paper'])
    ratio = (max(one, other) + 0.05) / (min(one, other) + 0.05)
    assert ratio >= 4.5


def test_the_dark_palette_replaces_every_color():
  light, dark = figure.LIGHT, figure.DARK
  assert dark.keys() == light.keys()
  assert all(dark[name] != light[name] for name in light)


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
