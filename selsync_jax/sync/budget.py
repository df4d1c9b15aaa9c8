r"""A trigger whose threshold follows a budget.

With a fixed threshold, such as SelSync's delta, how often workers synchronize
depends on the model, the batch size, the number of workers and the phase of the
training. `budgeted` fixes the rate instead. With p the wanted rate of
synchronizations, it moves the threshold after every step:

.. math::
  \log\theta \leftarrow \log\theta + g (s - p)

where s is 1 after a synchronization and 0 otherwise. So over any n steps the
rate differs from p by exactly the change of the logarithm, divided by g n. The
measurements matter only through how far the threshold has to follow them.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32

from selsync_jax.config import Positive
from selsync_jax.config import Share
from selsync_jax.sync import resizing
from selsync_jax.sync.part import part
from selsync_jax.sync.part import shown
from selsync_jax.sync.transformation import Trigger
from selsync_jax.sync.triggers import around

LIMIT = 50.0
"""The largest absolute value of the threshold's logarithm. It keeps the
threshold, and what it is compared with, within float32's range."""


class BudgetState(NamedTuple):
  """State of `budgeted`."""

  trigger: Any  # The state of the trigger inside.
  log_threshold: Float32[Array, '']  # Of its threshold at this step.
  sync: Bool[Array, '']  # Whether this step synchronizes.
  safe: Bool[Array, '']  # Whether it held its vote and nobody vetoed.


@part
def budgeted(
  trigger: Trigger,
  *,
  lssr: Share | None = None,
  bytes_per_step: Positive | None = None,
  gain: Positive = 1.0,
) -> Trigger:
  """Moves the threshold of a trigger so that it keeps to a budget.

  Args:
    trigger: the trigger; the budgeted threshold starts from its threshold.
    lssr: the share of the steps without a synchronization, in [0, 1).
    bytes_per_step: bytes that a worker may send for synchronization, on average
      over steps. If that pays for more than a synchronization at every step,
      every step synchronizes.
    gain: how much the logarithm of the threshold rises for one synchronization
      too many. The lower it is, the more the trigger decides which steps
      synchronize; the higher, the sooner the budget is met.

  Raises:
    ValueError: if the trigger has no threshold, or not exactly one budget is
      set.
  """
  threshold, meter = trigger.traits.threshold, trigger.traits.meter
  if threshold is None:
    raise ValueError(
      f'budgeted needs a trigger with one threshold, got {shown(trigger)}'
    )
  if (lssr is None) == (bytes_per_step is None):
    raise ValueError(
      'budgeted needs either lssr or bytes_per_step, '
      f'got lssr={lssr}, bytes_per_step={bytes_per_step}'
    )
  start = min(max(threshold, math.exp(-LIMIT)), math.exp(LIMIT))
  # The metric `threshold` is reserved for thresholds on the relative change.
  name = 'budget_threshold' if meter is None else 'threshold'

  def rate(traffic):  # The wanted rate of synchronizations.
    if lssr is not None:
      return 1 - lssr
    if traffic is None:
      raise ValueError('bytes_per_step needs the extra argument traffic')
    assert bytes_per_step is not None
    spare = bytes_per_step - traffic.step
    if spare <= 0:
      raise ValueError(
        f'bytes_per_step must be above {traffic.step:g}, which a step costs '
        f'without a synchronization (votes), got {bytes_per_step:g}'
      )
    return min(spare / traffic.sync, 1.0) if traffic.sync else 1.0

  def init(params):
    no = jnp.bool(False)
    state = trigger.init(params)
    return BudgetState(state, jnp.float32(math.log(start)), no, no)

  def update(updates, state, params=None, *, traffic=None, **extra_args):
    synced = extra_args.setdefault('synced', state.sync)
    change = gain * (synced - rate(traffic))
    log_threshold = jnp.clip(state.log_threshold + change, -LIMIT, LIMIT)
    extra_args |= dict(traffic=traffic, threshold=jnp.exp(log_threshold))
    inner: Any = trigger.update(updates, state.trigger, params, **extra_args)[1]
    safe = getattr(inner, 'safe', jnp.bool(True))
    return updates, BudgetState(inner, log_threshold, inner.sync, safe)

  def metrics(state):
    of_trigger = trigger.metrics(state.trigger)
    return {**of_trigger, name: jnp.exp(state.log_threshold)}

  def affordable(traffic):
    rate(traffic)
    trigger.traits.affordable(traffic)

  resize = resizing.fields(trigger=trigger.resize, log_threshold=resizing.first)
  own: dict[str, Any] = dict(metrics=metrics, resize=resize, threshold=None)
  own['affordable'] = affordable
  return Trigger(init, update, **around(trigger) | own)
