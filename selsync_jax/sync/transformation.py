"""Triggers and reducers: optax transformations that communicate."""

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any, ClassVar, NamedTuple
import weakref

import jax
import jax.numpy as jnp
import optax

from selsync_jax.sync import flat, resizing, traffic
from selsync_jax.sync.agreement import check_stacked, typed_as, varies_as_any
from selsync_jax.sync.part import Metrics, Part


class TriggerTraits(NamedTuple):
  """The properties of a trigger's decisions.

  Attributes:
    period: steps from one synchronization to the next; `None` if they depend on
      the workers' values.
    spacing: the fewest steps between synchronizations decided by a vote.
    vote_every: the fewest steps between votes that the trigger waits for.
    sees_update: whether it decides after the local update, on `applied`. In a
      custom chain such a trigger must be last.
    needs_consensus: whether it measures from the last common parameters.
    needs_travel: whether its state needs the travel time of an average, see
      `budgeted`.
    threshold: the first value of the extra argument `threshold`, if `update`
      takes one.
    longest: the most steps between synchronizations, without a veto; `None`
      if there is no bound.
    budgets: `budget(traffic)` of each budget inside: the target rate of
      synchronizations, or `None` while unknown. Raises `ValueError` if the
      strategy's traffic exceeds the budget whatever the trigger decides.
    meter: the measurement of the gradient's change that decides.
    compared: `compared(state)` returns the value that this worker's last update
      compared with the threshold.
  """

  period: int | None = None
  spacing: int = 1
  vote_every: int = 1
  longest: int | None = None
  sees_update: bool = False
  needs_consensus: bool = False
  needs_travel: bool = False
  threshold: float | None = None
  budgets: Sequence[Callable[[traffic.Traffic | None], float | None]] = ()
  meter: optax.GradientTransformationExtraArgs | None = None
  compared: Callable[[Any], Any] | None = None


class ReducerTraits(NamedTuple):
  """The properties of a reducer's results.

  Attributes:
    reduces: whether it changes gradients at all.
    every_step: whether it communicates at every step, so that all workers apply
      the same update.
    biased: whether only the sum of all workers is right, because a part of a
      gradient waits in an error memory, for example. Such a reducer needs equal
      parameters on all workers.
    consecutive: whether it compares the gradients of consecutive steps.
  """

  reduces: bool = True
  every_step: bool = True
  biased: bool = False
  consecutive: bool = False


class Transformation(optax.GradientTransformationExtraArgs, Part):
  """An optax transformation that communicates and reports.

  In a chain it is an ordinary `optax.GradientTransformationExtraArgs`.

  Args:
    init: see optax.
    update: see optax.
    metrics: `metrics(state)`, scalars by name, for the rows of a run.
    resize: the rule for the state of another number of workers; by default
      `resizing.reset`.
    **traits: fields of the record `traits`.
  """

  __repr__ = Part.__repr__  # In place of a tuple's.
  record: ClassVar[Callable[..., Any]]
  metrics: Metrics
  resize: resizing.Resize
  traits: Any

  def __new__(
    cls,
    init: Callable[..., Any],
    update: Callable[..., Any],
    *,
    metrics: Metrics = lambda state: {},
    resize: resizing.Resize = resizing.reset,
    **traits: Any,
  ) -> Any:
    """Creates the pair of functions and sets its declarations."""
    self = super().__new__(cls, *_keeping_types(init, update, cls.check))
    self.metrics, self.resize = metrics, resize
    self.traits = cls.record(**traits)
    return self

  @staticmethod
  def check(updates: Any, params: Any) -> None:
    """Raises `ValueError` for wrong arguments of `update`."""

  def _replace(self, **changes: Any) -> Any:
    """Replaces `init` or `update`, and drops the recipe."""
    new = super()._replace(**changes)
    vars(new).update(vars(self), recipe=None)
    return new


def _keeping_types(init, update, check):
  """Returns functions whose states all have one type under `jax.shard_map`.

  The outcome of a vote, for example, is equal on all workers. But in a state
  with a row per worker, its type says that it varies. `lax.scan` needs the same
  type at every step.
  """

  def typed_init(params):
    flat.check_arrays(params)
    return varies_as_any(init(params), params)

  def typed_update(updates, state, params=None, **extra_args):
    check(updates, params)
    updates, new = update(updates, state, params, **extra_args)
    flag = getattr(state, 'sync', None)
    if isinstance(flag, jax.Array) and new.sync is not flag:
      superseded[id(flag)] = flag
    return updates, jax.tree.map(typed_as, new, state)

  return typed_init, typed_update


superseded: weakref.WeakValueDictionary[int, Any] = (
  weakref.WeakValueDictionary()
)
"""The flags of states that an update has replaced, by `id`.

`decision` warns of them, because a loop that reads the state from before the
update is one step late. An array cannot be a key because it has no hash.
"""


class Trigger(Transformation):
  """A transformation that decides when workers synchronize.

  Its state has a bool `sync`, equal on all workers; updates pass through
  unchanged. If it votes, its state also has a bool `safe`: whether the vote was
  held and found everything finite.

  A training step calls `update` with extra arguments: `traffic`, the strategy's
  traffic, and, if the trigger `sees_update`, `applied`, the local update. An
  enclosing trigger adds `synced`, whether the previous step synchronized, and
  may add `threshold`. In a custom chain all of them are absent.
  """

  record = TriggerTraits
  traits: TriggerTraits

  def with_traffic(self, sent: traffic.Traffic) -> Any:
    """Returns the trigger with a fixed extra argument `traffic`."""
    new = self._replace(update=functools.partial(self.update, traffic=sent))
    new.recipe = self.recipe
    return new

  def sends(self, params: Any, workers: int) -> tuple[traffic.Collective, ...]:
    """Returns the collectives of an update."""
    # Any budget will do: the collectives do not depend on it.
    affords_all = traffic.Traffic(step=0.0, sync=math.inf, bsp=math.inf)

    def update(params, state):
      sees_update = self.traits.sees_update
      applied = {'applied': params} if sees_update else {}
      known = self.with_traffic(affords_all)
      return known.update(params, state, params, **applied)

    state = jax.eval_shape(self.init, params)
    return traffic.collectives(
      update, params, state, workers=workers, axes=self.axes
    )

  @staticmethod
  def check(updates: Any, params: Any) -> None:
    """Raises `ValueError` for gradients that JAX has summed over workers."""
    check_stacked(updates, params)


class Reducer(Transformation):
  """A transformation that communicates gradients.

  A training step calls `update` with the extra argument `sync`, the trigger's
  outcome at this step; a reducer that runs at every step ignores it. An error
  memory in its state should survive a change of the number of workers, for
  example by `resize=resizing.fields(error=resizing.mean)`.
  """

  record = ReducerTraits
  traits: ReducerTraits

  def sends(self, params: Any, workers: int) -> tuple[traffic.Collective, ...]:
    """Returns the collectives of an update, or of one at a synchronization."""
    if not self.traits.reduces:
      return ()

    def update(params, state, sync):
      return self.update(params, state, params, sync=sync)

    state, sync = jax.eval_shape(self.init, params), jnp.bool(False)
    return traffic.collectives(
      update,
      *(params, state, sync),
      workers=workers,
      axes=self.axes,
      at='step' if self.traits.every_step else 'sync',
    )
