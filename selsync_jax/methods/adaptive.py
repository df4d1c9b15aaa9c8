"""SelSync, which synchronizes when the training needs it.

The size of gradient changes depends on the model, the data, the batch size and
the number of workers. Without a delta, a budget finds a suitable one.
"""

from typing import Any, Literal

from selsync_jax.config import Count, Fraction, Positive, Share, Threshold
from selsync_jax.methods.parts import Context
from selsync_jax.sync import averagers, reducers, triggers
from selsync_jax.sync.budget import budgeted
from selsync_jax.sync.change import SMOOTHING
from selsync_jax.sync.selsync import selsync as change_reaches
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.triggers import Period

Aggregate = Literal['params', 'grads']
_AGGREGATES: dict[str, dict[str, Any]] = {
  'params': dict(averager=averagers.mean()),
  'grads': dict(reducer=reducers.at_sync(reducers.all_reduce())),
}

LSSR = 0.9
"""The share of local steps that is the default budget."""


def selsync(
  context: Context,
  *,
  delta: Threshold | None = None,
  lssr: Share | None = None,
  bytes_per_step: Positive | None = None,
  link_share: Fraction | None = None,
  smoothing: Fraction | None = SMOOTHING,
  quorum: Fraction | None = None,
  vote_delay: Literal[0, 1] = 0,
  vote_every: Count = 1,
  max_period: Period | None = None,
  aggregate: Aggregate = 'params',
) -> Strategy:
  """Averages when a gradient changes by delta: `selsync(delta)`, `mean()`.

  Without a delta it keeps to a budget: `budgeted(selsync(0.3), lssr)`, which
  starts from the first measured change.

  Args:
    delta: the threshold on the relative gradient change; 0 averages at every
      step. `None` lets a budget move it.
    lssr: the share of local steps that is the budget, in [0, 1). `None` means
      0.9, unless `delta` or another budget is set. Not in the paper.
    bytes_per_step: the budget in bytes that a worker sends for
      synchronization, on average over steps. Not in the paper.
    link_share: the budget as the share of the time in which an average is in
      flight, in (0, 1], for islands whose averages have a delay. Not in the
      paper.
    smoothing: the weight of the newest squared gradient norm, in (0, 1]. `None`
      is the paper's N / 100.
    quorum: the share of workers that must reach delta, in (0, 1]. `None` is the
      paper's rule: one worker is enough.
    vote_delay: steps from a flag to its synchronization, 0 or 1; the paper's is
      0.
    vote_every: steps from one vote to the next; the paper's is 1.
    max_period: the most steps from one average to the next. `None` sets no
      bound, as in the paper.
    aggregate: what is averaged, `params` or `grads`.

  References:
    Tyagi and Swany, `Accelerating Distributed ML Training via Selective
    Synchronization`, CLUSTER 2023, Algorithm 1; `aggregate` is its section
    `Parameter vs. gradient aggregation`.
  """
  budget = dict(lssr=lssr, bytes_per_step=bytes_per_step, link_share=link_share)
  given: dict[str, Any] = {
    name: value for name, value in budget.items() if value is not None
  }
  if delta is not None and given:
    (name, value), *_ = given.items()
    raise ValueError(
      f'delta={delta} is fixed, but {name}={value} would move it; set '
      'delta=None, or no budget'
    )
  trigger = change_reaches(
    0.3 if delta is None else delta,  # A budget moves it at once.
    smoothing=smoothing,
    quorum=quorum,
    vote_delay=vote_delay,
    vote_every=vote_every,
  )
  if delta is None:
    given = given or {'lssr': LSSR}
    trigger = budgeted(trigger, **given)
  if max_period is not None:
    trigger = triggers.any_of(trigger, triggers.max_interval(max_period))
  return Strategy(trigger, **_AGGREGATES[aggregate])
