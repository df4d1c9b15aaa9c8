"""Figure of islands that take part in a run, over time."""

from collections.abc import Iterator, Sequence
import functools
import itertools

from selsync_jax.islands import journal
from selsync_jax.islands.journal import Event
from selsync_jax.report import figure

# The legend's entry, the color, and the marker of each kind of event.
KINDS = {
  'joined': ('joins', 'sky', 'o'),
  'returned': ('rejoins', 'purple', 'v'),
  'admitted': ('is let in', 'green', '^'),
  'left': ('leaves', 'orange', 's'),
  'finished': ('finishes', 'blue', 'D'),
  'ended': ('ends', 'vermillion', 'X'),
}
UNITS = {'hours': 3600, 'minutes': 60, 'seconds': 1}
SHOWN = 8  # The most characters of a name.


def plot(events: Sequence[Event]) -> figure.Plot:
  """Plots the share of islands that take part, and a row for each of them."""
  start, end = events[0].time, events[-1].time
  unit = next((u for u in UNITS if end - start > 2 * UNITS[u]), 'seconds')

  def at(time):
    return (time - start) / UNITS[unit]

  times = [at(event.time) for event in events]
  most = max(len(event.present) for event in events) or 1
  shares = [len(event.present) / most for event in events]
  share = figure.Line(
    'participation',
    times,
    [shares[0], *shares[:-1]],  # A share holds until the next event.
    figure.series(0)._replace(marker=''),
    steps='pre',
  )
  names = sorted({event.island for event in events})
  spans = [
    (row, at(began), at(ended))
    for row, name in enumerate(names)
    for began, ended in _presence(events, name)
  ]
  rows, starts, stops = zip(*spans, strict=True) if spans else ([], [], [])
  marks = [
    figure.Spans(
      *('trains', rows, starts, stops, 'blue', [''] * len(rows)),
      f'trains: {{low}} to {{high}} {unit}',
    ),
    *(
      figure.Line(
        name,
        [at(event.time) for event in events if event.kind == kind],
        [names.index(e.island) for e in events if e.kind == kind],
        figure.Look(color, width=0, marker=marker, size=6),
        hover=f'{name}: {{x}} {unit}',
      )
      for kind, (name, color, marker) in KINDS.items()
    ),
  ]
  short = [n if len(n) <= SHOWN else f'…{n[1 - SHOWN :]}' for n in names]
  x = figure.Axis((0, times[-1] or 1), unit, ticks=6)
  y = figure.Axis(names=short)
  totals = functools.reduce(journal.Totals.after, events, journal.Totals())
  mean, caption = totals.participation(end), ''
  if mean is not None:
    caption = f'On average {mean:.1%} of the islands took part. '
  return figure.Plot(
    'islands',
    'Islands',
    f'{caption}The last event is the end of the figure.',
    [
      figure.Panel('participation', x, figure.SHARE, [share], 90),
      figure.Panel('island', x, y, marks, 14 + 24 * len(names)),
    ],
    columns=0,
    compares_x=False,
  )


def _presence(
  events: Sequence[Event], name: str
) -> Iterator[tuple[float, float]]:
  """Yields the start and end of each period in which an island takes part."""
  for is_there, pairs in itertools.groupby(
    itertools.pairwise(events), lambda pair: name in pair[0].present
  ):
    if is_there:
      (first, last), *more = pairs
      yield first.time, (more[-1][1] if more else last).time
