"""A method of synchronization, composed of parts."""

from typing import Any, NamedTuple

import optax

from selsync_jax.sync.averagers import Averager
from selsync_jax.sync.averagers import no_averaging
from selsync_jax.sync.change import measure
from selsync_jax.sync.moments import local
from selsync_jax.sync.moments import Moments
from selsync_jax.sync.part import shown
from selsync_jax.sync.reducers import no_reduction
from selsync_jax.sync.traffic import Collective
from selsync_jax.sync.transformation import Reducer
from selsync_jax.sync.transformation import Trigger


class Strategy(NamedTuple):
  """A method of synchronization.

  Attributes:
    trigger: when workers talk.
    averager: what a synchronization does to parameters and model state.
    reducer: what happens to the gradients.
    optimizer_state: what a synchronization does to the optimizer's state.
    averages_model_state: whether what is not a parameter (batch statistics)
      is averaged with the parameters. Otherwise it stays local.
  """

  trigger: Trigger
  averager: Averager = no_averaging()
  reducer: Reducer = no_reduction()
  optimizer_state: Moments = local()
  averages_model_state: bool = True

  @property
  def measure(self) -> optax.GradientTransformationExtraArgs:
    """The measurement of the gradient's change that a run records.

    It also detects gradients that are not finite.
    """
    return self.trigger.traits.meter or measure()

  @property
  def period(self) -> int | None:
    """Steps from one synchronization to the next; `None` if they vary."""
    return self.trigger.traits.period

  @property
  def keeps_replicas_equal(self) -> bool:
    """Whether parameters are equal on all workers after a synchronization."""
    return self.averager.agrees or self.reducer.traits.every_step

  def averaged(self, shared: Any) -> Any:
    """Returns the part of `{'params', 'model_state'}` that is averaged."""
    return shared if self.averages_model_state else {'params': shared['params']}

  def sends(
    self, shared: Any, workers: int, opt_state: Any = ()
  ) -> tuple[Collective, ...]:
    """Returns every collective that the parts issue.

    Args:
      shared: `{'params', 'model_state'}` of one worker, or their shapes.
      workers: N.
      opt_state: the optimizer's state of one worker, or its shapes.
    """
    params = shared['params']
    return (
      *self.trigger.sends(params, workers),
      *self.reducer.sends(params, workers),
      *self.averager.sends(self.averaged(shared), workers),
      *self.optimizer_state.sends(opt_state, workers),
    )

  def check(self) -> None:
    """Raises `ValueError` if parts cannot be right together."""
    for refused, reason in _REFUSED:
      if refused(self):
        parts = {name: shown(part) for name, part in self._asdict().items()}
        raise ValueError(reason.format(**parts))


# Combinations that cannot be right, and the reasons.
_REFUSED = (
  (
    lambda s: not s.averager.averages and not s.reducer.traits.reduces,
    'averager {averager} and reducer {reducer}: workers would never talk',
  ),
  (
    lambda s: (
      s.reducer.traits.every_step
      and not s.averager.averages
      and s.trigger.traits.period != 1
    ),
    'trigger {trigger} would decide nothing: reducer {reducer} runs at every '
    'step, and averager {averager} does nothing; set an averager, or the '
    'reducer at_sync',
  ),
  (
    lambda s: (
      s.reducer.traits.biased
      and not s.reducer.traits.every_step
      and not s.averager.agrees
    ),
    'trigger {trigger} lets parameters differ, and reducer {reducer} needs '
    'them equal: reduce at every step, or set an averager such as mean',
  ),
  (
    lambda s: s.trigger.traits.needs_consensus and not s.averager.agrees,
    'trigger {trigger} measures from common parameters, and averager '
    '{averager} leaves none',
  ),
  (
    lambda s: (
      s.trigger.traits.sees_update
      and s.reducer.traits.reduces
      and not s.reducer.traits.every_step
    ),
    'reducer {reducer} comes before the local update, and trigger {trigger} '
    'decides after it',
  ),
  (
    lambda s: s.optimizer_state.averages and not s.averager.agrees,
    'optimizer_state {optimizer_state} averages over all workers, and averager '
    '{averager} does not',
  ),
  (
    lambda s: s.optimizer_state.changes and not s.averager.averages,
    'optimizer_state {optimizer_state} changes at a synchronization of '
    'parameters, and averager {averager} makes none',
  ),
)
