"""The colors of light and dark mode."""

import numpy as np
import pytest

from selsync_jax.report import figure


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
