"""Triggers that need no gradient, and triggers that contain other triggers.

Triggers without a gradient need no vote: all workers count the same steps and
follow the same learning rate.

References (with titles in `selsync_jax.methods.table`):
  Lin et al., ICLR 2020, section on post-local SGD (`post_local`).
  Gu et al., ICLR 2024 (`qsr`).
"""

import collections
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from annotated_types import Interval
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32
import numpy as np
import optax

from selsync_jax.config import Positive
from selsync_jax.sync import resizing
from selsync_jax.sync.part import part
from selsync_jax.sync.traffic import Traffic
from selsync_jax.sync.transformation import Trigger

LONGEST = 2**30
"""The most steps of a round, so that the steps of a run fit into an int32."""

Period = Annotated[int, Interval(ge=1, le=LONGEST)]
"""Steps from one synchronization to the next."""


Budget = Callable[[Traffic | None], float | None]
"""See `TriggerTraits.budgets`."""


def bounded(
  budget: Budget, triggers: Sequence[Trigger], spacing: int, longest: int | None
) -> Budget:
  """Returns a budget that raises `ValueError` if it leaves no choice.

  Args:
    budget: the budget.
    triggers: the triggers that share the budget, for the message.
    spacing: the fewest steps between two of their synchronizations.
    longest: the most steps between these, if there is a bound.
  """

  def rate(traffic):
    wanted, names = budget(traffic), ' and '.join(map(str, triggers))
    budgeted = (
      f'one in {_steps(1 / wanted)}' if wanted else 'at most one a step'
    )
    if wanted and spacing > 1 and spacing * wanted > 1 - 1e-9:
      raise ValueError(
        f'{names}: at most one synchronization in {_steps(spacing)}, and the '
        f'budget is {budgeted}, so nothing is left to decide; lower the '
        f'{_steps(spacing)}, or allow fewer synchronizations'
      )
    if longest and longest * (wanted or 1) < 1 + 1e-9:
      raise ValueError(
        f'{names}: at least one synchronization in {_steps(longest)}, and the '
        f'budget is {budgeted}, so nothing is left to decide; raise the '
        f'{_steps(longest)}, or allow more synchronizations'
      )
    return wanted

  return rate


def _steps(count: float) -> str:
  return f'{round(count, 2):.10g} step{"s" * (count != 1)}'


def around(
  *triggers: Trigger, spacing: int, longest: int | None
) -> dict[str, Any]:
  """Returns arguments for a `Trigger` that updates others at every step.

  Args:
    *triggers: the other triggers.
    spacing: the fewest steps between synchronizations.
    longest: the most steps between synchronizations, if there is a bound,
      without the wait for a vote.

  Raises:
    ValueError: if the bounds leave no choice to a budget inside.
  """
  traits = [trigger.traits for trigger in triggers]
  thresholds = [t.threshold for t in traits if t.threshold is not None]
  meters = [t.meter for t in traits if t.meter is not None]
  vote_every = max(t.vote_every for t in traits)
  if longest is not None:
    longest = -(-longest // vote_every) * vote_every
  budgets = [
    bounded(budget, triggers, spacing, longest)
    for inner in traits
    for budget in inner.budgets
  ]
  for budget in budgets:
    budget(None)

  return dict(
    spacing=spacing,
    vote_every=vote_every,
    longest=longest,
    budgets=budgets,
    sees_update=any(t.sees_update for t in traits),
    needs_consensus=any(t.needs_consensus for t in traits),
    needs_travel=any(t.needs_travel for t in traits),
    # Several thresholds may apply to different quantities.
    threshold=thresholds[0] if len(thresholds) == 1 else None,
    meter=meters[0] if meters else None,
  )


class EveryState(NamedTuple):
  """State of `every`: steps taken, and whether the last one synchronizes."""

  count: Int32[Array, '']
  sync: Bool[Array, '']


@part
def every(k: Period) -> Trigger:
  """Synchronizes at steps k, 2k, 3k, and so on.

  Args:
    k: steps from one synchronization to the next, at least 1.
  """

  def init(_):
    return EveryState(jnp.int32(0), jnp.bool(False))

  def update(updates, state, params=None, **_):
    count = state.count + 1
    return updates, EveryState(count, count % k == 0)

  return Trigger(init, update, period=k, longest=k)


class MaxIntervalState(NamedTuple):
  """State of `max_interval`: steps since the last synchronization."""

  since: Int32[Array, '']
  sync: Bool[Array, '']


@part
def max_interval(k: Period) -> Trigger:
  """Synchronizes when the last synchronization is k steps ago.

  By itself this is `every(k)`. Inside `any_of`, it counts from the last
  synchronization that any of the triggers caused.

  Args:
    k: steps from one synchronization to the next, at least 1.
  """

  def init(_):
    return MaxIntervalState(jnp.int32(0), jnp.bool(False))

  def update(updates, state, params=None, **extra_args):
    synced = extra_args.get('synced', state.sync)
    since = jnp.where(synced, 0, state.since) + 1
    return updates, MaxIntervalState(since, since >= k)

  return Trigger(init, update, period=k, longest=k)


class RoundState(NamedTuple):
  """State of `post_local` and `qsr`.

  A round is the steps from one synchronization to the next.
  """

  step: Int32[Array, '']  # Steps taken.
  due: Int32[Array, '']  # The last step of this round; 0 before the first.
  sync: Bool[Array, '']  # Whether the round is over.


@part
def post_local(
  switch: Annotated[int, Interval(ge=0, le=LONGEST)], k: Period
) -> Trigger:
  """Synchronizes at each of the first steps, and periodically afterwards.

  The steps are 1, 2, ..., `switch`, `switch + k`, `switch + 2k`, and so on.

  Args:
    switch: the number of first steps that all synchronize; the paper's end at
      the first decay of the learning rate.
    k: steps from one synchronization to the next afterwards.
  """
  return _rounds(lambda step: jnp.where(step < switch, 1, k), longest=k)


@part
def qsr(
  alpha: Positive, h_min: Period, learning_rate: optax.Schedule
) -> Trigger:
  r"""Synchronizes less often as the learning rate falls.

  A round that starts at learning rate :math:`\eta` has

  .. math::
    H = \max\left(H_{min}, \lfloor (\alpha / \eta)^2 \rfloor\right)

  steps. While the learning rate warms up at the start of a run, a round has as
  many steps as the first round after the warmup. If the rate decays to 0, the
  last round may outlast the run; the evaluation still uses the mean.

  Args:
    alpha: the learning rate at which a round may have one step; above 0.
    h_min: the fewest steps of a round.
    learning_rate: the local optimizer's schedule.
  """

  def period(step):
    rate = learning_rate(jnp.maximum(step, warmup_steps(learning_rate)))
    # The tolerance keeps a quotient such as 0.3 / 0.1 from rounding down.
    quadratic = jnp.floor(jnp.square(alpha / rate) * (1 + 1e-6))
    return jnp.clip(quadratic, h_min, LONGEST).astype(jnp.int32)

  return _rounds(period)


def warmup_steps(learning_rate: optax.Schedule, within: int = 2**20) -> int:
  """Returns the step at which a schedule peaks before it first falls.

  A schedule that still rises after `within` steps has no warmup.
  """
  with jax.ensure_compile_time_eval():
    rates = np.asarray(jax.vmap(learning_rate)(jnp.arange(within)))
  falls = np.flatnonzero(np.diff(rates) < 0)
  peak = int(np.argmax(rates[: falls[0] + 1] if falls.size else rates))
  return peak if peak < within - 1 else 0


def _rounds(
  period: Callable[[Any], Any], longest: int | None = None
) -> Trigger:
  """Returns a trigger with rounds of `period(step)` steps from each `step`."""

  def init(_):
    return RoundState(jnp.int32(0), jnp.int32(0), jnp.bool(False))

  def update(updates, state, params=None, **extra_args):
    starts = extra_args.get('synced', state.sync) | (state.due == 0)
    due = jnp.where(starts, state.step + period(state.step), state.due)
    return updates, RoundState(state.step + 1, due, state.step + 1 >= due)

  resize = resizing.fields(step=resizing.position)
  return Trigger(init, update, resize=resize, longest=longest)


class AnyOfState(NamedTuple):
  """State of `any_of`: the triggers' states and their common decision."""

  triggers: tuple[Any, ...]  # The state of each trigger.
  sync: Bool[Array, '']  # Whether this step synchronizes.
  safe: Bool[Array, '']  # Whether every voting trigger voted without a veto.


@part
def any_of(*triggers: Trigger) -> Trigger:
  """Synchronizes when at least one of several triggers asks for it.

  A veto overrides all triggers: a step synchronizes only if every voting
  trigger held its vote at this step, without a veto. Next to
  `selsync(vote_every=k)`, `max_interval` therefore waits for the next vote,
  and no trigger synchronizes while a gradient is not finite.

  In a custom chain, `decision(opt_state)` reads the outcome.

  Args:
    *triggers: the triggers, at least one. They are updated with the extra
      argument `synced`: whether the previous step synchronized.

  Raises:
    ValueError: if one trigger synchronizes as often as the budget of another
      allows, so that the other would decide nothing.

  Example:
    >>> import jax, jax.numpy as jnp, selsync_jax as ss
    >>> trigger = ss.any_of(ss.selsync(delta=0.3), ss.max_interval(3))
    >>> def step(state, grad):
    ...   _, state = trigger.update(grad, state)
    ...   return state, state.sync
    >>> def run(grads):
    ...   return jax.lax.scan(step, trigger.init(grads[0]), grads)[1]
    >>> grads = jnp.ones((2, 8))  # Two workers, eight equal gradients.
    >>> print(jax.vmap(run, axis_name=ss.AXIS)(grads)[0].astype(int))
    [1 0 0 1 0 0 1 0]
  """
  if not triggers:
    raise ValueError('any_of needs at least one trigger')
  traits = [trigger.traits for trigger in triggers]
  inside = around(
    *triggers,
    spacing=max(
      min(t.spacing for t in traits), max(t.vote_every for t in traits)
    ),
    longest=min((t.longest for t in traits if t.longest), default=None),
  )

  def init(params):
    states = tuple(trigger.init(params) for trigger in triggers)
    return AnyOfState(states, jnp.bool(False), jnp.bool(False))

  def update(updates, state, params=None, **extra_args):
    extra_args.setdefault('synced', state.sync)
    states: tuple[Any, ...] = tuple(
      trigger.update(updates, inner, params, **extra_args)[1]
      for trigger, inner in zip(triggers, state.triggers, strict=True)
    )
    votes = [inner.safe for inner in states if hasattr(inner, 'safe')]
    safe = jnp.all(jnp.stack(votes)) if votes else jnp.bool(True)
    asked = jnp.any(jnp.stack([inner.sync for inner in states]))
    return updates, AnyOfState(states, asked & safe, safe)

  def metrics(state):
    pairs = zip(triggers, state.triggers, strict=True)
    every = [dict(trigger.metrics(inner)) for trigger, inner in pairs]
    return dict(collections.ChainMap(*every))  # The first trigger wins.

  each = resizing.each([trigger.resize for trigger in triggers])
  resize = resizing.fields(triggers=each)
  return Trigger(init, update, metrics=metrics, resize=resize, **inside)


class MinIntervalState(NamedTuple):
  """State of `min_interval`."""

  trigger: Any  # The state of the trigger inside.
  since: Int32[Array, '']  # Steps since the last synchronization.
  pending: Bool[Array, '']  # Whether the trigger asked since then.
  sync: Bool[Array, '']  # Whether this step synchronizes.
  safe: Bool[Array, '']  # Whether the trigger held its vote without a veto.


@part
def min_interval(k: Period, *, trigger: Trigger) -> Trigger:
  """Allows at most one synchronization in k steps.

  A synchronization requested sooner happens when k steps have passed.

  Args:
    k: steps from one synchronization to the next, at least 1.
    trigger: the trigger that asks for synchronizations.

  Raises:
    ValueError: if a budget of the trigger asks for one synchronization in k
      steps, or for more.
  """

  def init(params):
    # Starts as if the last synchronization were long ago.
    no = jnp.bool(False)
    return MinIntervalState(trigger.init(params), jnp.int32(k - 1), no, no, no)

  def update(updates, state, params=None, **extra_args):
    synced = extra_args.setdefault('synced', state.sync)
    inner: Any = trigger.update(updates, state.trigger, params, **extra_args)[1]
    since = jnp.where(synced, 0, state.since) + 1
    safe = getattr(inner, 'safe', jnp.bool(True))
    pending = (state.pending & ~synced) | inner.sync
    sync = pending & (since >= k) & safe
    return updates, MinIntervalState(inner, since, pending, sync, safe)

  longest = trigger.traits.longest
  inside = around(
    trigger,
    spacing=max(k, trigger.traits.spacing),
    longest=longest and max(k, longest),
  )
  return Trigger(
    init,
    update,
    metrics=lambda state: trigger.metrics(state.trigger),
    resize=resizing.fields(trigger=trigger.resize),
    **inside,
  )
