"""The labels in each worker's chunk of the training data."""

from jaxtyping import Int
import numpy as np

from selsync_jax.report import figure


def plot(counts: Int[np.ndarray, 'workers labels']) -> figure.Plot:
  """Plots a bar per label, in a strip per worker."""
  workers, labels = counts.shape
  x = figure.Axis((-0.5, labels - 0.5), 'label', ticks=10)
  y = figure.from_zero([counts.ravel()], ticks=2)
  height = figure.strip_height(workers)
  return figure.Plot(
    'labels',
    'Labels per worker',
    "Examples of each label in each worker's chunk of the training data.",
    [
      figure.Panel(
        f'worker {i}: examples',
        x,
        y,
        [
          figure.Bars(
            'examples',
            np.arange(labels),
            row,
            np.full(labels, 0.9),
            'blue',
            hover=f'worker {i}: {{y}}',
          )
        ],
        height,
      )
      for i, row in enumerate(counts)
    ],
    columns=0,
  )
