"""Label counts per worker, as bars of text."""

from jaxtyping import Int64
import numpy as np

_BARS = ' ▁▂▃▄▅▆▇█'
_MAX_BARS = 50  # The largest number of bars on a line.


def lines(counts: Int64[np.ndarray, 'workers labels']) -> list[str]:
  """Returns a heading, then a line per worker with bars of labels."""
  workers, labels = counts.shape
  group = -(-labels // _MAX_BARS)
  padded = np.pad(counts, [(0, 0), (0, -labels % group)])
  heights = padded.reshape(workers, -1, group).sum(axis=2)
  # Rounding up makes a single example visible.
  levels = -(-heights * (len(_BARS) - 1) // heights.max())
  return ['worker  examples  labels  examples of each label'] + [
    f'{worker:6}  {counts[worker].sum():8,}  '
    f'{np.count_nonzero(counts[worker]):6}  '
    f'▕{"".join(_BARS[level] for level in levels[worker])}▏'
    for worker in range(workers)
  ]
