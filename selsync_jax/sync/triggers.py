"""Triggers that need no gradient, and triggers made of triggers."""

import collections
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from selsync_jax.sync import resizing
from selsync_jax.sync.part import part
from selsync_jax.sync.periods import Period
from selsync_jax.sync.transformation import Trigger


def around(*triggers: Trigger) -> dict[str, Any]:
  """Returns arguments for a `Trigger` that updates others at every step."""
  traits = [trigger.traits for trigger in triggers]
  thresholds = [t.threshold for t in traits if t.threshold is not None]
  meters = [t.meter for t in traits if t.meter is not None]

  def affordable(traffic):
    for inner in traits:
      inner.affordable(traffic)

  return dict(
    sends=lambda params, workers: sum(
      (trigger.sends(params, workers) for trigger in triggers), ()
    ),
    spacing=max(t.spacing for t in traits),
    sees_update=any(t.sees_update for t in traits),
    needs_consensus=any(t.needs_consensus for t in traits),
    # Several thresholds may be on different quantities.
    threshold=thresholds[0] if len(thresholds) == 1 else None,
    meter=meters[0] if meters else None,
    affordable=affordable,
  )


def around_one(trigger: Trigger) -> dict[str, Any]:
  """Returns such arguments if one trigger's state is the field `trigger`."""
  return around(trigger) | dict(
    metrics=lambda state: trigger.metrics(state.trigger),
    resize=resizing.fields(trigger=trigger.resize),
  )


class EveryState(NamedTuple):
  """State of `every`: steps taken, and whether the last one synchronizes."""

  count: Int32[Array, '']
  sync: Bool[Array, '']


@part
def every(k: Period) -> Trigger:
  """Synchronizes at steps k, 2k, 3k, and so on.

  No vote is needed: all workers count the same steps.

  Args:
    k: steps from one synchronization to the next, at least 1.
  """

  def init(params):
    del params
    return EveryState(jnp.int32(0), jnp.bool(False))

  def update(updates, state, params=None, **extra_args):
    del params, extra_args
    count = state.count + 1
    return updates, EveryState(count, count % k == 0)

  return Trigger(init, update, period=k)


class AtLeastEveryState(NamedTuple):
  """State of `at_least_every`: steps since the last synchronization."""

  since: Int32[Array, '']
  sync: Bool[Array, '']


@part
def at_least_every(k: Period) -> Trigger:
  """Synchronizes when the last synchronization is k steps ago.

  Alone it is `every(k)`. Inside `any_of` it counts from the last
  synchronization that any of the triggers caused.

  Args:
    k: steps from one synchronization to the next, at least 1.
  """

  def init(params):
    del params
    return AtLeastEveryState(jnp.int32(0), jnp.bool(False))

  def update(updates, state, params=None, *, synced=None, **extra_args):
    del params, extra_args
    synced = state.sync if synced is None else synced
    since = jnp.where(synced, 0, state.since) + 1
    return updates, AtLeastEveryState(since, since >= k)

  return Trigger(init, update, period=k)


class AnyOfState(NamedTuple):
  """State of `any_of`.

  Attributes:
    triggers: the state of each trigger.
    sync: bool [], whether this step synchronizes, equal on all workers.
    safe: bool [], whether every trigger that votes held its vote and nobody
      vetoed; true if none votes.
  """

  triggers: tuple[Any, ...]
  sync: Bool[Array, '']
  safe: Bool[Array, '']


@part
def any_of(*triggers: Trigger) -> Trigger:
  """Synchronizes when at least one of several triggers asks for it.

  A veto overrides all triggers: a step synchronizes only if every trigger that
  votes held its vote at this step and nobody vetoed. Next to
  `selsync(vote_every=k)`, `at_least_every` therefore waits for the next vote,
  and no trigger synchronizes while a gradient is not finite.

  In your own chain, `decision(opt_state)` reads the outcome.

  Args:
    *triggers: the triggers, at least one. They are updated with the extra
      argument `synced`: whether the step before synchronized.

  Raises:
    ValueError: if there is no trigger.

  Example:
    >>> import jax, jax.numpy as jnp, selsync_jax as ss
    >>> trigger = ss.any_of(ss.selsync(delta=0.3), ss.at_least_every(3))
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

  def init(params):
    states = tuple(trigger.init(params) for trigger in triggers)
    return AnyOfState(states, jnp.bool(False), jnp.bool(False))

  def update(updates, state, params=None, *, synced=None, **extra_args):
    synced = state.sync if synced is None else synced
    states: tuple[Any, ...] = tuple(
      trigger.update(updates, inner, params, synced=synced, **extra_args)[1]
      for trigger, inner in zip(triggers, state.triggers, strict=True)
    )
    votes = [inner.safe for inner in states if hasattr(inner, 'safe')]
    safe = jnp.all(jnp.stack(votes)) if votes else jnp.bool(True)
    asked = jnp.any(jnp.stack([inner.sync for inner in states]))
    return updates, AnyOfState(states, asked & safe, safe)

  def metrics(state):
    pairs = zip(triggers, state.triggers, strict=True)
    every = [trigger.metrics(inner) for trigger, inner in pairs]
    return dict(collections.ChainMap(*map(dict, every)))  # The first one wins.

  return Trigger(
    init,
    update,
    metrics=metrics,
    resize=resizing.fields(
      triggers=resizing.each([trigger.resize for trigger in triggers])
    ),
    **around(*triggers),
  )


class AtMostEveryState(NamedTuple):
  """State of `at_most_every`.

  Attributes:
    trigger: the state of the trigger inside.
    since: int32 [], steps since the last synchronization.
    pending: bool [], whether the trigger has asked since then.
    sync: bool [], whether this step synchronizes.
    safe: bool [], whether the trigger held its vote and nobody vetoed.
  """

  trigger: Any
  since: Int32[Array, '']
  pending: Bool[Array, '']
  sync: Bool[Array, '']
  safe: Bool[Array, '']


@part
def at_most_every(k: Period, *, trigger: Trigger) -> Trigger:
  """Allows at most one synchronization in k steps.

  One that is asked for sooner takes place when k steps have passed.

  Args:
    k: steps from one synchronization to the next, at least 1.
    trigger: the trigger that asks for synchronizations.
  """

  def init(params):
    # As if the last synchronization were long ago.
    no = jnp.bool(False)
    return AtMostEveryState(trigger.init(params), jnp.int32(k - 1), no, no, no)

  def update(updates, state, params=None, *, synced=None, **extra_args):
    synced = state.sync if synced is None else synced
    inner: Any = trigger.update(
      updates, state.trigger, params, synced=synced, **extra_args
    )[1]
    since = jnp.where(synced, 0, state.since) + 1
    safe = getattr(inner, 'safe', jnp.bool(True))
    pending = (state.pending & ~synced) | inner.sync
    sync = pending & (since >= k) & safe
    return updates, AtMostEveryState(inner, since, pending, sync, safe)

  spacing = max(k, trigger.traits.spacing)
  return Trigger(init, update, **around_one(trigger) | {'spacing': spacing})
