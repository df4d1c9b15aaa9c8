"""Colors, dashes and markers of every figure.

References:
  Okabe and Ito, `Color Universal Design`, 2008: the palette. Series differ in
  dashes and markers as well.
"""

from selsync_jax.report.figure import Look

# By name: the color in light mode, and in dark mode.
_COLORS = {
  'paper': ('#ffffff', '#14171b'),
  'ink': ('#1f2329', '#e8ebee'),
  'muted': ('#5c6670', '#9aa5b0'),
  'rule': ('#dde2e7', '#2d343b'),
  'blue': ('#0072b2', '#4fa8e8'),
  'vermillion': ('#d55e00', '#f2803a'),
  'green': ('#009e73', '#2ac79b'),
  'purple': ('#cc79a7', '#dd96bf'),
  'orange': ('#e69f00', '#f0b42f'),
  'sky': ('#56b4e9', '#a5d8f8'),
}
LIGHT, DARK = ({k: v[i] for k, v in _COLORS.items()} for i in (0, 1))
SERIES = ('blue', 'vermillion', 'green', 'purple', 'orange', 'sky')
DASHES = ((), (5, 2), (1, 1.5), (5, 2, 1, 2))
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')

DOTTED = Look('muted', dash=(1, 3))
THIN = Look('muted', width=0.8)


def series(i: int) -> Look:
  """Returns color, dashes and marker of the i-th series."""
  color, dash = SERIES[i % len(SERIES)], DASHES[i % len(DASHES)]
  return Look(color, dash=dash, marker=MARKERS[i % len(MARKERS)])
