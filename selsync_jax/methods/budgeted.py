"""SelSync with a budget for communication in place of delta.

References:
  Tyagi and Swany, `Accelerating Distributed ML Training via Selective
  Synchronization`, CLUSTER 2023. The budget is ours.
"""

from selsync_jax.methods.context import Context
from selsync_jax.methods.selsync import LSSR
from selsync_jax.methods.selsync import START
from selsync_jax.sync.averagers import mean
from selsync_jax.sync.budget import budgeted as within_budget
from selsync_jax.sync.change import SMOOTHING
from selsync_jax.sync.selsync import selsync
from selsync_jax.sync.strategy import Strategy


def budgeted(
  context: Context,
  *,
  lssr: float | None = None,
  bytes_per_step: float | None = None,
  smoothing: float = SMOOTHING,
) -> Strategy:
  """SelSync that finds delta: `budgeted(selsync(delta), lssr)`, `mean()`.

  Args:
    context: not needed.
    lssr: the share of local steps, in [0, 1); none: 0.9, unless
      `bytes_per_step` is set.
    bytes_per_step: that a worker sends for synchronization, on average over
      steps; none: the budget is `lssr`.
    smoothing: weight of the newest squared gradient norm, in (0, 1].
  """
  del context
  if lssr is None and bytes_per_step is None:
    lssr = LSSR
  trigger = within_budget(
    selsync(START, smoothing=smoothing),
    lssr=lssr,
    bytes_per_step=bytes_per_step,
  )
  return Strategy(trigger, mean())
