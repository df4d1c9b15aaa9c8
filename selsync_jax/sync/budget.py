r"""A trigger whose threshold follows a budget.

With a fixed threshold, such as SelSync's delta, the rate of synchronizations
depends on the model, the batch size, the number of workers and the phase of the
training. `budgeted` fixes the rate instead. With a target rate p, it moves the
threshold after every step:

.. math::
  \log\theta \leftarrow \log\theta + g (s - p)

where s is 1 after a synchronization and 0 otherwise. With a constant gain g and
any measurements, the rate over n steps differs from p by exactly the change of
the logarithm divided by g n. But then the threshold jumps at every
synchronization, so the controller decides which steps synchronize. With a
falling gain the threshold settles, and the measurements decide:

.. math::
  g = \max(0.03, 1 / (1 + n))

after n synchronizations. The debt of the budget is the sum of s - p over steps,
with most weight on the last 10 / p. When the measurements change, the debt may
exceed 3 synchronizations; then n restarts at 0.

The first threshold is the first finite value measured. Until then every step
synchronizes.

The rate p is fixed, or follows from a budget in bytes. Or it follows from q,
the share of the time in which the link may carry an average. If an average
travels for m steps, p is q / m.
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
threshold and the compared value within float32's range."""


LEAST = 0.03
"""The lowest gain, unless it is constant."""

MOST_DEBT = 3.0
"""The excess or shortfall of synchronizations that resets the gain to 1."""

MEMORY = 10.0
"""The number of synchronizations in which a debt falls to 1 / e."""


class BudgetState(NamedTuple):
  """State of `budgeted`; all but `trigger` is equal on all workers."""

  trigger: Any  # The state of the trigger inside.
  # The logarithm of this step's threshold; -inf before anything is measured.
  log_threshold: Float32[Array, '']
  # Synchronizations since the gain was 1; -1 before the first threshold.
  count: Int32[Array, '']
  debt: Float32[Array, '']  # The recent excess of synchronizations.
  sync: Bool[Array, '']  # Whether this step synchronizes.
  safe: Bool[Array, '']  # Whether the trigger held its vote without a veto.
  # The steps that an average travels, if the budget is a share of the link; 0
  # while unknown. See `with_travel`.
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
    trigger: the trigger with the threshold. The budget starts from the
      trigger's own threshold only if its traits have no `compared`.
    lssr: the share of the steps without a synchronization, in [0, 1).
    bytes_per_step: bytes that a worker may send for synchronization, on average
      over steps. If the budget allows more than a synchronization per step,
      every step synchronizes.
    link_share: the largest share of the time in which an average may be in
      flight, in (0, 1]. Islands measure the travel time; until then, p is 1.
      With an average delay of k steps, there is at most one average in k steps,
      and all votes during its flight count as one. So the share may be smaller.
    gain: how much one excess synchronization raises the logarithm of the
      threshold, if constant. With a low gain, the trigger decides more about
      which steps synchronize; with a high one, the budget is met sooner. `None`
      lets the gain fall from 1 to 0.03 once the budget is met.

  Raises:
    ValueError: if the trigger has no threshold; if not exactly one budget is
      set; or if the trigger cannot synchronize more often, or less often, than
      the budget asks. It would then synchronize periodically.
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
        'know the bytes of an average; set lssr = 1 - bytes_per_step / (bytes '
        'of one average) instead'
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
  """Returns whether a state needs to know how long an average travels."""
  return bool(_travels(state))


def with_travel(state: Any, steps: float) -> Any:
  """Returns a state that knows how long an average travels.

  Args:
    state: the state of a trigger that contains
      `budgeted(..., link_share=...)`, at any depth.
    steps: the travel time of an average, divided by the time of a step.

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
  """Returns the first threshold's logarithm; `unset` without a measurement."""
  usable = jnp.isfinite(measured) & (measured > 0)
  first = jnp.log(jnp.where(usable, measured, 1.0))
  return jnp.where(usable, jnp.clip(first, -LIMIT, LIMIT), unset)
