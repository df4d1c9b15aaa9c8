"""SelSync: average the parameters when some worker's gradient is changing.

How large a change is depends on the model, the data, the batch size and the
number of workers. So without a delta, a budget finds one: it works for any
model and any number of workers. `selsync_paper` has the paper's settings.

References:
  Tyagi and Swany, `Accelerating Distributed ML Training via Selective
  Synchronization`, CLUSTER 2023, Algorithm 1; `aggregate` is its section
  `Parameter vs. gradient aggregation`.
"""

from selsync_jax.config import lookup
from selsync_jax.methods.context import Context
from selsync_jax.sync import averagers
from selsync_jax.sync import reducers
from selsync_jax.sync import triggers
from selsync_jax.sync.budget import budgeted
from selsync_jax.sync.change import SMOOTHING
from selsync_jax.sync.selsync import selsync as change_reaches
from selsync_jax.sync.strategy import Strategy

_AGGREGATES = {
  'params': dict(averager=averagers.mean()),
  'grads': dict(reducer=reducers.at_sync(reducers.all_reduce())),
}


START = 0.3
"""Where a budget starts its search for delta: the paper's."""

LSSR = 0.9
"""The share of local steps for which it looks."""


def selsync(
  context: Context,
  *,
  delta: float | None = None,
  smoothing: float | None = SMOOTHING,
  quorum: float | None = None,
  lag: int = 0,
  vote_every: int = 1,
  max_period: int | None = None,
  aggregate: str = 'params',
) -> Strategy:
  """Averages when a gradient changes by delta: `selsync(delta)`, `mean()`.

  Args:
    context: not needed.
    delta: threshold on the relative gradient change; 0 averages at every step;
      none: moves so that nine of ten steps stay local, see `budgeted`.
    smoothing: weight of the newest squared gradient norm, in (0, 1].
    quorum: share of workers that must reach delta, in (0, 1]; none: the
      paper's rule, one worker is enough. Ours.
    lag: steps from a flag to the synchronization it asks for: 0, as in the
      paper, or 1. Ours.
    vote_every: steps from one vote to the next; the paper's is 1. Ours.
    max_period: steps from one average to the next, at most; none: no bound,
      as in the paper. Ours.
    aggregate: what is averaged, `params` or `grads`.
  """
  del context
  if max_period is not None and max_period < 1:
    raise ValueError(f'max_period must be None or at least 1, got {max_period}')
  trigger = change_reaches(
    START if delta is None else delta,
    smoothing=smoothing,
    quorum=quorum,
    lag=lag,
    vote_every=vote_every,
  )
  if delta is None:
    trigger = budgeted(trigger, lssr=LSSR)
  if max_period is not None:
    trigger = triggers.any_of(trigger, triggers.at_least_every(max_period))
  return Strategy(trigger, **lookup(_AGGREGATES, aggregate))
