"""A Gantt chart of what each worker did at the beginning of a simulated run."""

from typing import Any

import numpy as np

from selsync_jax.report import figure
from selsync_jax.runs.history import Run

# The color and the entry of the legend of each kind of span.
KINDS = {
  'compute': ('blue', 'computes'),
  'wait': ('rule', 'waits for others'),
  'communicate': ('vermillion', 'communicates'),
}
STEPS = 10  # How many steps of the slowest worker are shown.


def plot(run: Run) -> figure.Plot:
  """Plots computation, waiting, and communication over virtual seconds."""
  workers = run.config['workers']
  spans = np.concatenate(run.values('spans')).tolist()
  end = _end(spans, workers)
  names = [str(worker) for worker in range(workers)]
  return figure.Plot(
    'timeline',
    'What the workers do',
    'The first steps on the virtual clock, a row for each worker. A number is '
    'the version of the parameters from which a step computes: how many '
    'updates of them had been made by then.',
    [
      figure.Panel(
        'worker',
        figure.Axis((0, end), 'virtual seconds', ticks=6),
        figure.Axis((workers - 0.5, -0.5), names=names),
        [
          _bars(kind, [s for s in spans if s[1] == kind and s[2] < end])
          for kind in KINDS
        ],
        14 + 24 * workers,
      )
    ],
    compares_x=False,
  )


def _bars(kind: str, spans: list[Any]) -> figure.Spans:
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


def _end(spans: list[Any], workers: int) -> float:
  """Returns the time when the slowest worker ends its first `STEPS` steps."""
  ends = [
    [stop for w, kind, _, stop, _ in spans if w == worker and kind == 'compute']
    for worker in range(workers)
  ]
  return max(each[:STEPS][-1] for each in ends if each)
