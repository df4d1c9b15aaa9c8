"""Figures of runs besides their metrics: costs, labels, timeline, staleness."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Int
import numpy as np

from selsync_jax.report import figure
from selsync_jax.runs.history import Run

_BUCKETS = 270  # The largest number of parts of a line over steps.
BINS = 40  # The largest number of bars of a histogram.
LEAST = 4  # The smallest end of a histogram's axis.

# The color and the entry of the legend of each kind of span in a timeline.
KINDS = {
  'compute': ('blue', 'computes'),
  'wait': ('rule', 'waits for others'),
  'communicate': ('vermillion', 'communicates'),
}
STEPS = 10  # How many steps of the slowest worker a timeline shows.


def communication(runs: Sequence[Run]) -> figure.Plot:
  """Plots LSSR and sent bytes over steps, next to the bytes of BSP."""
  bsp, x = _bsp(runs), _steps(runs)
  sent = [*bsp, *_lines(runs, 'bytes_per_worker')]
  y = figure.from_zero(figure.columns(sent), unit='B')
  panels = [figure.Panel('bytes sent per worker', x, y, sent)]
  against = ', against BSP (dotted)' if bsp else ''
  caption = f'Bytes: the sum that each worker has sent so far{against}.'
  if any(run.is_lockstep for run in runs):
    title, limits = 'LSSR (local steps / steps)', figure.Axis((-0.02, 1.02))
    panels.insert(0, figure.Panel(title, x, limits, _lines(runs, 'lssr')))
    caption = (
      'LSSR: the share of the steps so far that stayed local. It is 0 for BSP, '
      f'which synchronizes at every step. {caption}'
    )
  title = 'Communication saved'
  return figure.Plot('communication', title, caption, panels, columns=2)


def learning_rate(runs: Sequence[Run]) -> figure.Plot:
  """Plots the learning rate of every step."""
  marks = [
    line._replace(look=line.look._replace(marker=''))
    for line in _lines(runs, 'lr')
  ]
  x, y = _steps(runs, ticks=8), figure.from_zero(figure.columns(marks))
  return figure.Plot(
    'learning-rate',
    'Learning rate',
    'The learning rate at each step. It follows the schedule, whether the step '
    'synchronizes or not.',
    [figure.Panel('learning rate', x, y, marks, height=110)],
  )


def selection(runs: Sequence[Run]) -> figure.Plot:
  """Plots the lengths of sparse messages, and the share that did not fit."""
  x, marks = _steps(runs), _lines(runs, 'selection')
  y = figure.from_zero(figure.columns(marks))
  panels = [figure.Panel('longest selection, in k / N', x, y, marks)]
  if held_back := _lines(runs, 'overflow'):
    title, limits = 'share that did not fit', figure.Axis((-0.02, 1.02))
    panels += [figure.Panel(title, x, limits, held_back)]
  return figure.Plot(
    'selection',
    'Selected elements',
    'The longest selection of a worker, in multiples of the k / N elements it '
    'should have. With a capacity, what does not fit into a message waits.',
    panels,
    columns=2,
  )


def reported(runs: Sequence[Run], fields: Sequence[str]) -> figure.Plot:
  """Plots columns that parts of a method, or a custom loop, add to the rows."""
  x, panels = _steps(runs), []
  for field in fields:
    marks = _lines(runs, field)
    y = figure.spanning(figure.columns(marks))
    panels.append(figure.Panel(field.replace('_', ' '), x, y, marks))
  return figure.Plot(
    'reported',
    'Also recorded',
    'Other numbers that are recorded at each step, as means over workers. '
    'Parts of a method report some of them.',
    panels,
    columns=2,
  )


def _steps(runs: Sequence[Run], ticks: int = 4) -> figure.Axis:
  steps = [run.column('step') for run in runs]
  axis = figure.from_zero(steps, 'steps', ticks=ticks)
  return axis._replace(whole=True)


def _lines(runs: Sequence[Run], field: str) -> list[figure.Line]:
  marks = []
  for i, run in enumerate(runs):
    if field not in run.rows[-1]:
      continue
    y = run.column(field)
    kept = figure.envelope(y, _BUCKETS)
    x = run.column('step')[kept]
    marks.append(figure.Line(run.name, x, y[kept], figure.series(i)))
  return marks


def _bsp(runs: Sequence[Run]) -> list[figure.Line]:
  """Returns a line of the bytes that BSP would have sent.

  It ends with the longest finished run. There is none if the finished runs
  differ in the bytes that BSP sends per step.
  """
  finished = [run.summary for run in runs if run.summary]
  rates = [each['bytes_per_worker_bsp'] / each['steps'] for each in finished]
  if not rates or max(rates) > 1.001 * min(rates):  # Bytes are rounded.
    return []
  longest = max(finished, key=lambda summary: summary['steps'])
  x, y = [0, longest['steps']], [0, longest['bytes_per_worker_bsp']]
  return [figure.Line('BSP would have sent', x, y, figure.DOTTED)]


def labels(counts: Int[np.ndarray, 'workers labels']) -> figure.Plot:
  """Plots a bar per label, in a strip per worker."""
  label = np.arange(counts.shape[1])
  x = figure.Axis((-0.5, len(label) - 0.5), 'label', ticks=10, whole=True)
  y = figure.from_zero([counts.ravel()], ticks=2)
  height, panels = figure.strip_height(len(counts)), []
  for i, row in enumerate(counts):
    hover, widths = f'worker {i}: {{y}}', np.full(len(label), 0.9)
    bars = figure.Bars('examples', label, row, widths, 'blue', hover)
    panels.append(figure.Panel(f'worker {i}: examples', x, y, [bars], height))
  return figure.Plot(
    'labels',
    'Labels per worker',
    "Examples of each label in each worker's chunk of the training data.",
    panels,
    columns=0,
  )


def staleness(runs: Sequence[Run]) -> figure.Plot:
  """Plots a histogram over all gradients of a run; lines for several runs."""
  ages = [np.concatenate(run.values('staleness')).astype(float) for run in runs]
  top = max(LEAST, *(each.max() for each in ages))
  width = max(1, int(np.ceil((top + 1) / BINS)))
  edges = np.arange(0, top + 1 + width, width) - 0.5
  middles = (edges[:-1] + edges[1:]) / 2
  shares = [np.histogram(each, edges)[0] / len(each) for each in ages]
  marks: list[figure.Mark] = [
    figure.Line(run.name, middles, share, figure.series(i), steps='mid')
    for i, (run, share) in enumerate(zip(runs, shares, strict=True))
  ]
  title, widths = 'share of gradients', np.diff(edges)
  if len(runs) == 1:
    marks = [figure.Bars(title, middles, shares[0], widths, 'blue')]
  limits, label = (edges[0], edges[-1]), 'updates in between'
  x = figure.Axis(limits, label, ticks=10, whole=True)
  return figure.Plot(
    'staleness',
    'Staleness of gradients',
    'How many updates the parameters received while a gradient was computed '
    'from their earlier version. It is 0 for methods whose workers take the '
    'same steps together.',
    [figure.Panel(title, x, figure.from_zero(shares), marks)],
  )


def timeline(run: Run) -> figure.Plot:
  """Plots the first actions of each worker over virtual seconds."""
  workers = run.config['workers']
  spans = np.concatenate(run.values('spans')).tolist()
  # The time when the slowest worker ends its first steps.
  ends = [
    [stop for w, kind, _, stop, _ in spans if w == worker and kind == 'compute']
    for worker in range(workers)
  ]
  end = max(each[:STEPS][-1] for each in ends if each)
  x = figure.Axis((0, end), 'virtual seconds', ticks=6)
  names = [str(worker) for worker in range(workers)]
  y = figure.Axis((workers - 0.5, -0.5), names=names)
  marks = [
    _spans(kind, [s for s in spans if s[1] == kind and s[2] < end])
    for kind in KINDS
  ]
  return figure.Plot(
    'timeline',
    'Timeline of the workers',
    'The first steps on the virtual clock, a row for each worker. A number is '
    'the version of the parameters that a step uses: the number of updates by '
    'then.',
    [figure.Panel('worker', x, y, marks, 14 + 24 * workers)],
    compares_x=False,
  )


def _spans(kind: str, spans: list[Any]) -> figure.Spans:
  color, name = KINDS[kind]
  computes = kind == 'compute'
  version = ' from version {text}' if computes else ''
  return figure.Spans(
    name,
    rows=[worker for worker, *_ in spans],
    starts=[start for *_, start, _, _ in spans],
    stops=[stop for *_, stop, _ in spans],
    color=color,
    texts=[str(version) if computes else '' for *_, version in spans],
    hover=f'worker {{row}} {name}{version}: {{low}} to {{high}} s',
  )
