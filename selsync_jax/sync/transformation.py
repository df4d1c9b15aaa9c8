"""What a trigger and a reducer are: optax transformations that communicate."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import optax

from selsync_jax.sync.part import Metrics
from selsync_jax.sync.part import no_metrics
from selsync_jax.sync.part import Part
from selsync_jax.sync.resizing import reset
from selsync_jax.sync.resizing import Resize
from selsync_jax.sync.traffic import Sends
from selsync_jax.sync.traffic import sends_nothing
from selsync_jax.sync.traffic import Traffic


class TriggerTraits(NamedTuple):
  """What a trigger declares about its decisions.

  Attributes:
    period: steps from one synchronization to the next; `None` where they
      depend on what the workers see.
    spacing: steps from one synchronization that a vote decides to the next, at
      least.
    sees_update: whether it decides after the local update, on `applied`. In a
      chain of your own such a trigger stands last.
    needs_consensus: whether it measures from the last common parameters.
    threshold: where the extra argument `threshold` starts, if it takes one.
    affordable: a function of what the strategy sends, which raises
      `ValueError` if that breaks a budget whatever the trigger decides.
    meter: the measurement of the gradient's change that it decides by.
  """

  period: int | None = None
  spacing: int = 1
  sees_update: bool = False
  needs_consensus: bool = False
  threshold: float | None = None
  affordable: Callable[[Traffic], Any] = lambda traffic: None
  meter: optax.GradientTransformationExtraArgs | None = None


class ReducerTraits(NamedTuple):
  """What a reducer declares about its results.

  Attributes:
    reduces: whether it communicates at all.
    every_step: whether it does at every step, so that all workers apply the
      same update.
    biased: whether it leaves out a part of the gradient, which waits in an
      error memory; needs parameters that are equal on all workers.
  """

  reduces: bool = True
  every_step: bool = True
  biased: bool = False


class Transformation(optax.GradientTransformationExtraArgs, Part):
  """An optax transformation that says what it sends, reports, and is.

  In a chain it is an ordinary `optax.GradientTransformationExtraArgs`.

  Args:
    init: as in optax.
    update: as in optax.
    sends: `sends(params, workers)`, what an update sends.
    metrics: `metrics(state)`, scalars by name, for the rows of a run.
    resize: what becomes of the state when the number of workers changes, see
      `resizing`; by default it is reset.
    **traits: fields of the record `traits`.
  """

  record: ClassVar[Callable[..., Any]]
  sends: Sends
  metrics: Metrics
  resize: Resize
  traits: Any

  def __new__(
    cls,
    init: Callable[..., Any],
    update: Callable[..., Any],
    sends: Sends = sends_nothing,
    *,
    metrics: Metrics = no_metrics,
    resize: Resize = reset,
    **traits: Any,
  ) -> Any:
    """A pair of functions, as in optax, with what it declares beside them."""
    self = super().__new__(cls, init, update)
    self.sends, self.metrics, self.resize = sends, metrics, resize
    self.traits = cls.record(**traits)
    return self

  def _replace(self, **changes: Any) -> Any:
    """The same with another `init` or `update`; it has no recipe anymore."""
    new = super()._replace(**changes)
    vars(new).update(vars(self), recipe=None)
    return new


class Trigger(Transformation):
  """Leaves a bool `sync`, equal on all workers, in its state.

  Updates pass through unchanged. A trigger that votes also leaves `safe`:
  whether the vote was held and found everything finite.

  A training step calls `update` with the extra arguments `traffic`, what the
  strategy sends, and, if the trigger `sees_update`, `applied`, the local
  update. A trigger around this one adds `synced`, whether the step before
  synchronized, and may add `threshold`. In your own chain they are absent.

  Attributes:
    traits: what it declares about its decisions.
  """

  record = TriggerTraits
  traits: TriggerTraits


class Reducer(Transformation):
  """Communicates gradients.

  A training step calls `update` with the extra argument `sync`, the trigger's
  outcome at this step; a reducer that runs at every step ignores it. An error
  memory in its state should survive a change of the number of workers, for
  example by `resize=resizing.fields(error=resizing.mean)`.

  Attributes:
    traits: what it declares about its results.
  """

  record = ReducerTraits
  traits: ReducerTraits
