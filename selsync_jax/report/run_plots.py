"""Figures of runs besides their metrics: costs, labels, timeline, staleness."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selsync_jax.report import figure
from selsync_jax.report.figure import Axis, Panel, Plot
from selsync_jax.runs import history, ledger
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
# Known columns that have no figure of their own.
_UNDRAWN = {
  *('lr', 'selection', 'overflow', 'budget_threshold', 'senders', 'renewed'),
  *('least_weighted', 'least_weight'),
}
_NON_IID = ('by_label', 'dirichlet')  # Partitions that are uneven on purpose.
STEPS = 10  # How many steps of the slowest worker a timeline shows.


def communication(runs: Sequence[Run]) -> Plot | None:
  """Plots LSSR and sent bytes over steps, next to the bytes of BSP."""
  bsp, x = _bsp(runs), _steps()
  against = ', against BSP (dotted)' if bsp else ''
  sentences = {
    'LSSR: the share of the steps so far that stayed local. It is 0 for BSP, '
    'which synchronizes at every step.': any(run.is_lockstep for run in runs),
    f'Bytes: the sum that each worker has sent so far{against}.': True,
  }
  caption = figure.caption(sentences)
  return _over_steps(
    runs,
    'communication',
    'Communication saved',
    caption,
    {
      'lssr': Panel('LSSR (local steps / steps)', x, figure.SHARE),
      'bytes_per_worker': Panel(
        'bytes sent per worker', x, Axis(unit='B', kind='zero'), bsp
      ),
    },
  )


def reported(runs: Sequence[Run]) -> Plot | None:
  """Plots columns without a figure of their own, such as the learning rate."""
  x, fields = _steps(), dict.fromkeys(k for run in runs for k in run.rows[-1])
  drawn = {name for run in runs for name in run.metrics}
  drawn |= ledger.COLUMNS - _UNDRAWN
  return _over_steps(
    runs,
    'reported',
    'Also recorded',
    'Other numbers that are recorded at each step, as means over workers. '
    'Parts of a method report some of them.',
    {
      field: Panel(field.replace('_', ' '), x, Axis())
      for field in fields
      if field not in drawn
      and not field.endswith('_quantiles')
      and not history.is_score(field)
    },
  )


def _steps() -> Axis:
  return Axis(label='steps', kind='zero', whole=True)


def _over_steps(
  runs: Sequence[Run],
  name: str,
  title: str,
  caption: str,
  fields: Mapping[str, Panel],
) -> Plot | None:
  """Plots each field that some run has, with a line for each of these runs."""
  panels = []
  for field, panel in fields.items():
    lines = []
    for i, run in enumerate(runs):
      if field in run.rows[-1]:
        y = run.columns[field]
        kept = figure.envelope(y, _BUCKETS)
        x, look = run.columns['step'][kept], figure.series(i)
        lines.append(figure.Line(run.name, x, y[kept], look))
    if lines:
      panels.append(panel._replace(marks=[*panel.marks, *lines]))
  return Plot(name, title, caption, panels, columns=2) if panels else None


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


def labels(run: Run) -> Plot | None:
  """Plots a bar per label, in a strip per worker, if labels are uneven."""
  counts = run.label_counts
  if counts is None or run.config['data']['partition'] not in _NON_IID:
    return None
  label = np.arange(counts.shape[1])
  x = Axis((-0.5, len(label) - 0.5), 'label', ticks=10, whole=True)
  y, widths = Axis(kind='zero', ticks=2), np.full(len(label), 0.9)
  height, panels = figure.strip_height(len(counts)), []
  for i, row in enumerate(counts):
    hover = f'worker {i}: {{y}}'
    bars = figure.Bars('examples', label, row, widths, 'blue', hover)
    panels.append(Panel(f'worker {i}: examples', x, y, [bars], height))
  return Plot(
    'labels',
    'Labels per worker',
    "Examples of each label in each worker's chunk of the training data.",
    panels,
    columns=0,
  )


def staleness(runs: Sequence[Run]) -> Plot | None:
  """Plots a histogram over all gradients of a run; lines for several runs."""
  stale = {
    run.name: np.concatenate(values).astype(float)
    for run in runs
    if run.outcome.get('staleness')
    and any(map(len, values := run.worker_values['staleness']))
  }
  if not stale:
    return None
  top = max(LEAST, *(each.max() for each in stale.values()))
  width = max(1, int(np.ceil((top + 1) / BINS)))
  edges = np.arange(0, top + 1 + width, width) - 0.5
  middles = (edges[:-1] + edges[1:]) / 2
  shares = [np.histogram(each, edges)[0] / len(each) for each in stale.values()]
  marks: list[figure.Mark] = [
    figure.Line(name, middles, share, figure.series(i), steps='mid')
    for i, (name, share) in enumerate(zip(stale, shares, strict=True))
  ]
  title, widths = 'share of gradients', np.diff(edges)
  if len(shares) == 1:
    marks = [figure.Bars(title, middles, shares[0], widths, 'blue')]
  label = 'updates in between'
  x = Axis((edges[0], edges[-1]), label, ticks=10, whole=True)
  return Plot(
    'staleness',
    'Staleness of gradients',
    'How many updates the parameters received while a gradient was computed '
    'from their earlier version. It is 0 for methods whose workers take the '
    'same steps together.',
    [Panel(title, x, Axis(kind='zero'), marks)],
  )


def timeline(run: Run) -> Plot | None:
  """Plots the first actions of each worker over virtual seconds."""
  if not run.is_simulated or not any(map(len, run.worker_values['spans'])):
    return None
  workers = run.config['workers']
  spans = np.concatenate(run.worker_values['spans']).tolist()
  # The time when the slowest worker ends its first steps.
  ends = [
    [stop for w, kind, _, stop, _ in spans if w == worker and kind == 'compute']
    for worker in range(workers)
  ]
  end = max(each[:STEPS][-1] for each in ends if each)
  marks = [
    _spans(kind, [s for s in spans if s[1] == kind and s[2] < end])
    for kind in KINDS
  ]
  x = Axis((0, end), 'virtual seconds', ticks=6)
  y = Axis(names=[str(worker) for worker in range(workers)])
  return Plot(
    'timeline',
    'Timeline of the workers',
    'The first steps on the virtual clock, a row for each worker. A number is '
    'the version of the parameters that a step uses: the number of updates by '
    'then.',
    [Panel('worker', x, y, marks, 14 + 24 * workers)],
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
