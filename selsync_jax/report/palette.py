"""Colors, dashes and markers of every figure.

References:
  Okabe and Ito, `Color Universal Design`, 2008: the palette. Series differ in
  dashes and markers as well.
"""

from selsync_jax.report.figure import Look

LIGHT = {
  'paper': '#ffffff',
  'ink': '#1f2329',
  'muted': '#5c6670',
  'rule': '#dde2e7',
  'blue': '#0072b2',
  'vermillion': '#d55e00',
  'green': '#009e73',
  'purple': '#cc79a7',
  'orange': '#e69f00',
  'sky': '#56b4e9',
}
DARK = {
  'paper': '#14171b',
  'ink': '#e8ebee',
  'muted': '#9aa5b0',
  'rule': '#2d343b',
  'blue': '#4fa8e8',
  'vermillion': '#f2803a',
  'green': '#2ac79b',
  'purple': '#dd96bf',
  'orange': '#f0b42f',
  'sky': '#a5d8f8',
}
SERIES = ('blue', 'vermillion', 'green', 'purple', 'orange', 'sky')
DASHES = ((), (5, 2), (1, 1.5), (5, 2, 1, 2))
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')

DOTTED = Look('muted', dash=(1, 3))
THIN = Look('muted', width=0.8)


def series(i: int) -> Look:
  """Returns color, dashes and marker of the i-th series."""
  return Look(
    SERIES[i % len(SERIES)],
    dash=DASHES[i % len(DASHES)],
    marker=MARKERS[i % len(MARKERS)],
  )
