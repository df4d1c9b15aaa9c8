"""What a trigger and a reducer are: optax transformations that communicate."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from selsync_jax.sync.part import Part
from selsync_jax.sync.traffic import Sends
from selsync_jax.sync.traffic import sends_nothing
from selsync_jax.sync.traffic import Traffic


class Transformation(optax.GradientTransformationExtraArgs, Part):
  """An optax transformation that says what it sends.

  In a chain it is an ordinary `optax.GradientTransformationExtraArgs`.

  Args:
    init: as in optax.
    update: as in optax.
    sends: of the parameters (or their shapes), what an update sends.
    **traits: values for the attributes of the class.
  """

  sends: Sends

  def __new__(
    cls,
    init: Callable[..., Any],
    update: Callable[..., Any],
    sends: Sends = sends_nothing,
    **traits: Any,
  ) -> Any:
    """A pair of functions, as in optax, with `sends` and traits beside them."""
    self = super().__new__(cls, init, update)
    self.sends = sends
    for name, value in traits.items():
      if name not in cls.__annotations__:
        raise TypeError(f'{cls.__name__} has no {name}')
      setattr(self, name, value)
    return self


class Trigger(Transformation):
  """Leaves a bool `sync`, equal on all workers, in its state.

  Updates pass through unchanged. A trigger that votes also leaves `safe`:
  whether the vote was held and found everything finite.

  A training step calls `update` with the extra arguments `traffic`, what the
  strategy sends, and, if the trigger `sees_update`, `applied`, the local
  update. A trigger around this one adds `synced`, whether the step before
  synchronized, and may add `threshold`. In your own chain they are absent.

  Attributes:
    period: steps from one synchronization to the next; `None` where they
      depend on what the workers see.
    spacing: steps from one synchronization that a vote decides to the next, at
      least.
    sees_update: whether it decides after the local update, on `applied`. In a
      chain of your own such a trigger stands last.
    needs_consensus: whether it measures from the last common parameters.
    threshold: where the extra argument `threshold` starts, if it takes one.
    affordable: of what the strategy sends; raises `ValueError` if that breaks
      a budget whatever the trigger decides.
    meter: the measurement of the gradient's change that it decides by.
  """

  period: int | None = None
  spacing: int = 1
  sees_update: bool = False
  needs_consensus: bool = False
  threshold: float | None = None
  affordable: Callable[[Traffic], None] = staticmethod(lambda traffic: None)
  meter: optax.GradientTransformationExtraArgs | None = None


class Reducer(Transformation):
  """Communicates gradients.

  A training step calls `update` with the extra argument `sync`, the trigger's
  outcome at this step; a reducer that runs at every step ignores it. A field
  of its state named `error` is this worker's error memory, float32.

  Attributes:
    reduces: whether it communicates at all.
    every_step: whether it does at every step, so that all workers apply the
      same update.
    biased: whether it leaves out a part of the gradient, which waits in the
      error memory; needs parameters that are equal on all workers.
  """

  reduces: bool = True
  every_step: bool = True
  biased: bool = False


def overflow(state: Any) -> dict[str, Any]:
  """`{'overflow': ...}` of a reducer's state that counts it, else nothing.

  It is how many elements a sparse reducer selected and could not send, for
  want of capacity; they wait in its error memory.
  """
  return {
    name: getattr(state, name) for name in ('overflow',) if hasattr(state, name)
  }


def threshold(state: Any) -> dict[str, Any]:
  """`{'threshold': ...}` of a trigger's state that steers one, else nothing."""
  steered = optax.tree.get_all_with_path(state, 'log_threshold')
  return {'threshold': jnp.exp(steered[0][1])} if steered else {}
