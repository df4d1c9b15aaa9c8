"""FedAvg: average a random subset of the workers, and give all the result.

References:
  McMahan et al., `Communication-Efficient Learning of Deep Networks from
  Decentralized Data`, AISTATS 2017; (C, E) as in Tyagi and Swany, CLUSTER 2023,
  section `Evaluation`.
"""

import math

from selsync_jax.methods.context import Context
from selsync_jax.sync.averagers import subset_mean
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.triggers import every


def fedavg(
  context: Context, *, fraction: float = 1.0, epochs: float = 0.25
) -> Strategy:
  """Averages a random subset of the workers, and gives all workers the result.

  `every(k)`, `subset_mean(fraction)`.

  Args:
    context: provides steps per epoch and seed.
    fraction: C, the fraction of the workers to average, in (0, 1].
    epochs: E, epochs from one average to the next; 0.25 is from Tyagi and
      Swany.
  """
  if not 0 < epochs < math.inf:
    raise ValueError(f'epochs must be a finite number above 0, got {epochs}')
  period = max(1, round(epochs * context.steps_per_epoch))
  averager = subset_mean(fraction, context.seed)
  return Strategy(every(period), averager)
