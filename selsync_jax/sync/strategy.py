"""A method of synchronization, composed of parts."""

from typing import Any, NamedTuple

import optax

from selsync_jax.sync.averagers import Averager, no_averaging
from selsync_jax.sync.change import measure
from selsync_jax.sync.delay import Delayed
from selsync_jax.sync.optimizer_state import local, Moments
from selsync_jax.sync.reducers import no_reduction
from selsync_jax.sync.traffic import Collective
from selsync_jax.sync.transformation import Reducer, Trigger


class Strategy(NamedTuple):
  """A method of synchronization.

  Attributes:
    trigger: decides when workers synchronize.
    averager: combines parameters and model state at a synchronization.
    reducer: communicates gradients.
    optimizer_state: the policy for the optimizer's state at a synchronization.
    averages_model_state: whether the model state (batch statistics) is averaged
      with the parameters. Otherwise it stays local.
  """

  trigger: Trigger
  averager: Averager = no_averaging()
  reducer: Reducer = no_reduction()
  optimizer_state: Moments = local()
  averages_model_state: bool = True

  @property
  def measure(self) -> optax.GradientTransformationExtraArgs:
    """The recorded measurement, which also detects non-finite gradients."""
    return self.trigger.traits.meter or measure()

  @property
  def keeps_replicas_equal(self) -> bool:
    """Whether parameters are equal on all workers after a synchronization."""
    return self.averager.agrees or self.reducer.traits.every_step

  def averaged(self, shared: Any) -> Any:
    """Returns `shared`, without `model_state` if that stays local."""
    if self.averages_model_state:
      return shared
    return {name: x for name, x in shared.items() if name != 'model_state'}

  def sends(
    self, shared: Any, workers: int, opt_state: Any = ()
  ) -> tuple[Collective, ...]:
    """Returns all collectives of the parts, see `sends_by_part`."""
    return sum(self.sends_by_part(shared, workers, opt_state).values(), ())

  def sends_by_part(
    self, shared: Any, workers: int, opt_state: Any = ()
  ) -> dict[str, tuple[Collective, ...]]:
    """Returns the collectives of each part, by the part's field name.

    Both arguments are one worker's, or shapes. `shared` is
    `{'params', 'model_state'}`, with `copies` if the optimizer holds
    parameters. `opt_state` is the rest of the optimizer's state.
    """
    params = shared['params']
    return {
      'trigger': self.trigger.sends(params, workers),
      'reducer': self.reducer.sends(params, workers),
      'averager': self.averager.sends(self.averaged(shared), workers),
      'optimizer_state': self.optimizer_state.sends(opt_state, workers),
    }

  def check(self) -> None:
    """Raises `ValueError` if the parts cannot work together."""
    trigger, reducer = self.trigger.traits, self.reducer.traits
    averager, policy = self.averager, self.optimizer_state
    forgets = isinstance(averager, Delayed) and averager.forgets
    at_sync = reducer.reduces and not reducer.every_step
    idle = reducer.every_step and not averager.averages
    # Reasons why a combination is refused, and whether each applies.
    refused = {
      'averager {averager} and reducer {reducer}: workers never communicate': (
        not averager.averages and not reducer.reduces
      ),
      'trigger {trigger} would decide nothing: reducer {reducer} runs at every '
      'step, and averager {averager} does nothing; set an averager, or the '
      'reducer at_sync': idle and trigger.period != 1,
      'trigger {trigger} lets parameters differ, but reducer {reducer} needs '
      'them equal: reduce at every step, or set an averager such as mean': (
        reducer.biased and not reducer.every_step and not averager.agrees
      ),
      'trigger {trigger} measures from common parameters, but averager '
      '{averager} leaves none': trigger.needs_consensus and not averager.agrees,
      'trigger {trigger} needs averages that travel while workers compute, and '
      'averager {averager} has no delay': (
        trigger.needs_travel and not averager.steps_late
      ),
      'reducer {reducer} runs when trigger {trigger} asks for it, and averager '
      '{averager} averages later and less often': at_sync
      and averager.steps_late > 0,
      'reducer {reducer} makes all workers take the same steps, but averager '
      '{averager} drops a part of those taken while an average travels; set '
      'keep=1': reducer.every_step and forgets,
      'reducer {reducer} comes before the local update, but trigger {trigger} '
      'decides after it': trigger.sees_update and at_sync,
      'optimizer_state {optimizer_state} changes at a synchronization of '
      'parameters, but averager {averager} makes none': (
        policy.changes and not averager.averages
      ),
      'optimizer_state {optimizer_state} needs averages of all parameters over '
      'all workers, but averager {averager} makes none; set local': (
        policy.changes and not (averager.agrees or averager.agrees_late)
      ),
    }
    for reason, applies in refused.items():
      if applies:
        parts = {name: str(part) for name, part in self._asdict().items()}
        raise ValueError(reason.format(**parts))
