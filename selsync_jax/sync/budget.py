r"""A trigger whose threshold follows a budget.

With a fixed threshold, such as SelSync's delta, how often workers synchronize
depends on the model, the batch size, the number of workers and the phase of the
training. `budgeted` fixes the rate instead. With p the wanted rate of
synchronizations, it moves the threshold after every step:

.. math::
  \log\theta \leftarrow \log\theta + g (s - p)

where s is 1 after a synchronization and 0 otherwise. With a constant gain g the
rate over any n steps differs from p by exactly the change of the logarithm,
divided by g n, whatever is measured. But then the threshold jumps at every
synchronization, so that the controller decides which steps synchronize. With a
gain that falls, it settles, and the measurements decide:

.. math::
  g = \max(0.03, 1 / (1 + n))

after n synchronizations. The debt of the budget is the sum of s - p over steps,
of which the last 10 / p count most. Once it exceeds 3 synchronizations, because
what is measured has changed, n starts anew.

The first finite value measured is the first threshold. Until then every step
synchronizes.

The rate p is fixed, or follows from the bytes that may be sent. Or the link is
to carry an average for a share q of the time: if one travels for m steps, p is
q / m.
"""

import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32
import optax

from selsync_jax.config import Fraction, Positive, Share
from selsync_jax.sync import resizing
from selsync_jax.sync.consensus import AXIS, check_mapped
from selsync_jax.sync.part import part
from selsync_jax.sync.traffic import annotated
from selsync_jax.sync.transformation import Trigger
from selsync_jax.sync.triggers import around, bounded

LIMIT = 50.0
"""The largest absolute value of the threshold's logarithm. It keeps the
threshold, and what it is compared with, within float32's range."""


LEAST = 0.03
"""The lowest gain, unless it is constant."""

MOST_DEBT = 3.0
"""The synchronizations too many, or too few, after which a gain is 1 again."""

MEMORY = 10.0
"""The synchronizations after which a debt has fallen to 1 / e."""


class BudgetState(NamedTuple):
  """State of `budgeted`; all but the trigger's is equal on all workers."""

  trigger: Any  # The state of the trigger inside.
  # Of its threshold at this step; -inf before anything is measured.
  log_threshold: Float32[Array, '']
  # Synchronizations since the gain was 1; -1 before the first threshold.
  count: Int32[Array, '']
  debt: Float32[Array, '']  # Synchronizations too many, lately.
  sync: Bool[Array, '']  # Whether this step synchronizes.
  safe: Bool[Array, '']  # Whether it held its vote and nobody vetoed.
  # In how many steps an average travels, if the budget is a share of the link;
  # 0 before that is known. See `with_travel`.
  travel: Any = ()  # Float32 [].


@part
def budgeted(
  trigger: Trigger,
  *,
  lssr: Share | None = None,
  bytes_per_step: Positive | None = None,
  link_share: Fraction | None = None,
  gain: Positive | None = None,
  axis_name: str = AXIS,
) -> Trigger:
  """Moves the threshold of a trigger so that it keeps to a budget.

  Args:
    trigger: the trigger. Its own threshold is where the budget starts only if
      its traits do not say what it has `compared`.
    lssr: the share of the steps without a synchronization, in [0, 1).
    bytes_per_step: bytes that a worker may send for synchronization, on average
      over steps. If that pays for more than a synchronization at every step,
      every step synchronizes.
    link_share: the most of the time in which an average may be on its way, as
      a share in (0, 1], measured now. Islands measure it; before they have, p
      is 1. If averages are late by k steps, there is at most one in k steps,
      and votes while one travels are one, so the share may be smaller.
    gain: how much the logarithm of the threshold rises for one synchronization
      too many, if it is to be constant. The lower it is, the more the trigger
      decides which steps synchronize; the higher, the sooner the budget is met.
      `None` lets it fall from 1 to 0.03 once the budget is met.

  Raises:
    ValueError: if the trigger has no threshold, or not exactly one budget is
      set, or the trigger can synchronize no more often than the budget wants,
      or no less often, so that it would do so periodically.
  """
  threshold, meter = trigger.traits.threshold, trigger.traits.meter
  if threshold is None:
    raise ValueError(
      f'budgeted needs a trigger with one threshold, got {trigger}'
    )
  if [lssr, bytes_per_step, link_share].count(None) != 2:
    raise ValueError(
      'budgeted needs one of lssr, bytes_per_step, and link_share, got '
      f'lssr={lssr}, bytes_per_step={bytes_per_step}, link_share={link_share}'
    )
  compared = trigger.traits.compared
  start = math.log(min(max(threshold, math.exp(-LIMIT)), math.exp(LIMIT)))
  # The metric `threshold` is reserved for thresholds on the relative change.
  name = 'budget_threshold' if meter is None else 'threshold'

  def rate(traffic):
    if lssr is not None:
      return 1 - lssr
    if bytes_per_step is None or traffic is None:
      return None
    spare = bytes_per_step - traffic.step
    if spare <= 0:
      raise ValueError(
        f'bytes_per_step must be above {traffic.step:g}, which a step costs '
        f'without a synchronization (votes), got {bytes_per_step:g}'
      )
    return min(spare / traffic.sync, 1.0) if traffic.sync else 1.0

  spacing, longest = trigger.traits.spacing, trigger.traits.longest
  inside = around(trigger, spacing=spacing, longest=longest)
  budget = bounded(rate, [trigger], spacing, longest)
  budget(None)

  def init(params):
    no, zero = jnp.bool(False), jnp.float32(0)
    first, count = (start, 0) if compared is None else (-jnp.inf, -1)
    state = trigger.init(params)
    travel = () if link_share is None else zero
    return BudgetState(
      state, jnp.float32(first), jnp.int32(count), zero, no, no, travel
    )

  def first(own, unset):
    return _first(lax.pmax(own, axis_name), unset)

  def update(updates, state, params=None, *, traffic=None, **extra_args):
    synced = extra_args.setdefault('synced', state.sync)
    if link_share is not None:
      wanted = link_share / jnp.maximum(state.travel, link_share)
    else:
      wanted = budget(traffic)
    if wanted is None:
      raise ValueError(
        f'bytes_per_step={bytes_per_step!r}: a trigger in a chain does not '
        'know what an average sends; set lssr = 1 - bytes_per_step / (bytes of '
        'one average) instead'
      )
    log_threshold, count, debt = _moved(state, synced, wanted, gain)
    extra_args |= dict(traffic=traffic, threshold=jnp.exp(log_threshold))
    inner: Any = trigger.update(updates, state.trigger, params, **extra_args)[1]
    if compared is not None:
      check_mapped(axis_name)
      log_threshold = lax.cond(
        log_threshold == -jnp.inf,
        annotated(first, rate=0.0),  # Once.
        lambda own, old: old,
        *(compared(inner), log_threshold),
      )
    safe = getattr(inner, 'safe', jnp.bool(True))
    moved = log_threshold, count, debt
    return updates, BudgetState(inner, *moved, inner.sync, safe, state.travel)

  def metrics(state):
    of_trigger = trigger.metrics(state.trigger)
    return {**of_trigger, name: jnp.exp(state.log_threshold)}

  names = 'log_threshold', 'count', 'debt', 'travel'
  kept = dict.fromkeys(names, resizing.first)
  resize = resizing.fields(trigger=trigger.resize, **kept)

  own: dict[str, Any] = dict(metrics=metrics, resize=resize, threshold=None)
  own['budgets'] = [*inside['budgets'], budget]
  own['needs_travel'] = link_share is not None
  return Trigger(init, update, **inside | own)


def asks_travel(state: Any) -> bool:
  """Returns whether a state wants to know how long an average travels."""
  return bool(_travels(state))


def with_travel(state: Any, steps: float) -> Any:
  """Returns a state that knows how long an average travels.

  Args:
    state: that of a trigger with `budgeted(..., link_share=...)` anywhere in
      it.
    steps: the time in which an average travels, divided by that of a step.

  Example:
    >>> import selsync_jax as ss
    >>> trigger = ss.budgeted(ss.selsync(0.3), link_share=0.8)
    >>> with_travel(trigger.init(jnp.zeros(2)), 10.0).travel
    Array(10., dtype=float32)
  """
  (_, known), *_ = _travels(state)
  return optax.tree.set(state, _is_known, travel=jnp.full_like(known, steps))


def _travels(state: Any) -> list[Any]:
  return optax.tree.get_all_with_path(state, 'travel', _is_known)


def _is_known(path: Any, value: Any) -> bool:
  return bool(jax.tree.leaves(value))


def _moved(state, synced, rate, gain):
  """Returns the next logarithm of the threshold, count and debt."""
  excess = synced - rate
  debt = state.debt * (1 - rate / MEMORY) + excess
  restarts = jnp.abs(debt) > MOST_DEBT
  count = jnp.where(restarts, 0, state.count)
  if gain is None:
    gain = jnp.maximum(LEAST, 1 / (1 + count))
  moved = jnp.clip(state.log_threshold + gain * excess, -LIMIT, LIMIT)
  later = moved, count + synced, jnp.where(restarts, 0, debt)
  # The step at which the first threshold was found did not have it yet.
  found = state.log_threshold > -jnp.inf
  earlier = state.log_threshold, jnp.where(found, 0, -1), jnp.float32(0)
  return optax.tree.where(state.count < 0, earlier, later)


def _first(measured, unset):
  """Returns the logarithm of the first threshold; `unset` without a value."""
  usable = jnp.isfinite(measured) & (measured > 0)
  first = jnp.log(jnp.where(usable, measured, 1.0))
  return jnp.where(usable, jnp.clip(first, -LIMIT, LIMIT), unset)
