"""SelSync with the settings of its paper, for 16 workers.

The smoothing factor is N / 100 and nothing bounds the steps between two
averages. With few workers the measured change is then small: at delta 0.3 four
workers may never synchronize after their first step.

References:
  Tyagi and Swany, `Accelerating Distributed ML Training via Selective
  Synchronization`, CLUSTER 2023, Algorithm 1 and Table I.
"""

from selsync_jax.methods.context import Context
from selsync_jax.methods.selsync import selsync
from selsync_jax.sync.strategy import Strategy


def selsync_paper(
  context: Context, *, delta: float = 0.3, aggregate: str = 'params'
) -> Strategy:
  """Averages when a gradient changes by delta, smoothed by N / 100.

  Args:
    context: not needed.
    delta: threshold on the relative gradient change; 0 averages at every step.
      The paper's Table I has 0.3 and 0.5.
    aggregate: what is averaged, `params` or `grads`.
  """
  return selsync(context, delta=delta, smoothing=None, aggregate=aggregate)
