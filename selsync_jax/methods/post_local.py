"""Post-local SGD: average at every step at first, and periodically later.

References:
  Lin et al., `Don't Use Large Mini-Batches, Use Local SGD`, ICLR 2020.
"""

import math

from selsync_jax.methods.context import Context
from selsync_jax.sync import periods
from selsync_jax.sync.averagers import mean
from selsync_jax.sync.strategy import Strategy


def post_local(
  context: Context, *, switch: float = 10.0, period: int = 8
) -> Strategy:
  """Averages at every step at first: `post_local(switch, k)`, `mean()`.

  Args:
    context: gives the steps of an epoch.
    switch: epochs in which every step averages; the paper's end at the first
      decay of the learning rate.
    period: steps from one average to the next afterwards; the paper has 16 and
      32.
  """
  if not math.isfinite(switch):
    raise ValueError(f'switch must be finite, got {switch}')
  steps = round(switch * context.steps_per_epoch)
  return Strategy(periods.post_local(steps, period), mean())
