"""One worker's training step: a local update, then an average if it is due.

References:
  Tyagi and Swany, CLUSTER 2023, Algorithm 1, lines 6 to 15.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
from jax import lax
import jax.numpy as jnp
import optax

from selsync_jax.config import config_errors, ConfigError
from selsync_jax.models import tasks
from selsync_jax.optimizers import move_schedules
from selsync_jax.runs import ledger
from selsync_jax.sync import flat, replicas
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.copies import Leaves, NONE
from selsync_jax.sync.strategy import Strategy
from selsync_jax.training.gradient import gradient, Loss

PARTS = {
  'trigger_state': 'trigger',
  'reducer_state': 'reducer',
  'averager_state': 'averager',
  'moments_state': 'optimizer_state',
}
"""By field of the state, the part of the strategy that owns it."""


class TrainState(flax.struct.PyTreeNode):
  """The state of one worker."""

  step: Any  # int32 [], optimizer steps taken; equal on all workers.
  syncs: Any  # int32 [], how many of them synchronized.
  params: Any
  model_state: Any  # The other variables, batch statistics for example.
  opt_state: Any
  measure_state: Any  # The gradient change on this worker.
  trigger_state: Any
  reducer_state: Any
  averager_state: Any
  moments_state: Any  # Of the policy for the optimizer's state.
  ema: Any  # The moving average of the parameters; `()` if there is none.
  # Parameters that the optimizer never changes, and parameters that it holds.
  frozen: Leaves = flax.struct.field(pytree_node=False)
  copies: Leaves = flax.struct.field(pytree_node=False)

  @property
  def trained(self) -> Any:
    """The parameters without the frozen ones."""
    return self.frozen.rest(self.params)

  @property
  def shared(self) -> dict[str, Any]:
    """Everything that workers average: trained parameters and model state.

    Parameters that the optimizer holds are there under `copies`.
    """
    shared = {'params': self.trained, 'model_state': self.model_state}
    copies = self.copies.take(self.opt_state)
    return shared | ({'copies': copies} if copies else {})

  def with_shared(self, shared: Mapping[str, Any]) -> 'TrainState':
    """Returns the state with these values of `shared`."""
    return self.replace(
      params=self.frozen.put_rest(self.params, shared['params']),
      model_state=shared.get('model_state', self.model_state),
      opt_state=self.copies.put(self.opt_state, shared.get('copies', ())),
    )

  @property
  def moments(self) -> Any:
    """The optimizer's state without parameters that it holds."""
    return self.copies.rest(self.opt_state)

  @property
  def scored(self) -> dict[str, Any]:
    """The trees that an evaluation averages and scores."""
    params = self.params
    if self.ema:
      params = optax.tree.cast_like(self.ema, params)
    return {'params': params, 'model_state': self.model_state}


def init_state(
  params: Any,
  model_state: Any,
  strategy: Strategy,
  optimizer: optax.GradientTransformation,
  ema_decay: float | None = None,
  frozen: Leaves = NONE,
  copies: Leaves = NONE,
) -> TrainState:
  """Returns one worker's state before the first step."""
  trained = frozen.rest(params)
  state = TrainState(
    step=jnp.int32(0),
    syncs=jnp.int32(0),
    params=params,
    model_state=model_state,
    opt_state=optimizer.init(params),
    measure_state=strategy.measure.init(trained),
    trigger_state=strategy.trigger.init(trained),
    reducer_state=strategy.reducer.init(trained),
    averager_state=(),
    moments_state=(),
    ema=() if ema_decay is None else flat.wide(params),
    frozen=frozen,
    copies=copies,
  )
  policy = strategy.optimizer_state
  with config_errors(f'sync: optimizer_state {policy}'):
    moments_state = policy.init(state.moments)
  return state.replace(
    averager_state=strategy.averager.init(strategy.averaged(state.shared)),
    moments_state=moments_state,
  )


def train_step(
  loss: Loss,
  strategy: Strategy,
  optimizer: optax.GradientTransformation,
  seed: int,
  check_every: int = 0,
  alone: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn,
  accumulate: int = 1,
  ema_decay: float | None = None,
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, Any]]]:
  """Returns the step of one worker, to be mapped over all workers.

  It is `(state, batch) -> (state, metrics)`. Metrics are this worker's scalars:
  the loss's metrics, `relative_change`, `synced`, and `unequal`, the index of
  the first parameter that differs between workers that should be equal, or -1.
  The replicas are compared after every `check_every` synchronizations; 0 is
  never. The key of dropout is folded from `seed`, the step and the worker. The
  gradient's function has no collectives, see `Mapper.alone`; it takes the batch
  in `accumulate` pieces, see `gradient`.

  At a free pace, an item `rests` in the batch says whether the worker rests. A
  step at rest counts for the trigger and for schedules, but takes no gradient.

  With `ema_decay`, each worker keeps a moving average of its parameters. Their
  mean is the moving average of the consensus, and nothing more has to travel.
  """
  synchronize = _synchronization(strategy, optimizer, check_every)
  backward = alone(gradient(loss, accumulate))

  def take(state, batch):
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    key = jax.random.fold_in(key, lax.axis_index(AXIS))
    grads, (metrics, model_state) = backward(
      state.params, state.model_state, batch, key
    )
    state, change, sync = _local_update(
      strategy, optimizer, state, grads, model_state
    )
    return state, metrics, change, sync

  def step(state: TrainState, batch: Any):
    if isinstance(batch, Mapping) and 'rests' in batch:
      rests, own = batch['rests'], dict(batch)
      del own['rests']
      of_one = jax.eval_shape(take, state, own)
      state, metrics, change, sync = lax.cond(
        rests,
        lambda state, own: _rested(strategy, state, of_one),
        take,
        *(state, own),
      )
    else:
      state, metrics, change, sync = take(state, batch)
    state, synced, unequal = synchronize(sync, state)
    if ema_decay is not None:
      state = state.replace(ema=_moved(state, ema_decay))
    return state, {
      **_reported(strategy, state, metrics),
      **metrics,
      'relative_change': change,
      'synced': synced,
      'unequal': unequal,
    }

  return step


def _moved(state, decay):
  """Returns the moving average of the parameters after a step.

  The decay is smaller in the first steps, so that the initial parameters are
  soon forgotten, as in TensorFlow's `ExponentialMovingAverage`.
  """
  kept = jnp.minimum(decay, (1 + state.step) / (10 + state.step))
  return optax.incremental_update(state.params, state.ema, 1 - kept)


def _reported(strategy, state, metrics):
  """Returns the values that parts report; of equal names, the first part's.

  Raises:
    ConfigError: if a value cannot stand in a row beside the task's metrics.
  """
  reported = {}
  taken = (ledger.COLUMNS - ledger.REPORTED) | metrics.keys()
  for field, kind in PARTS.items():
    part = getattr(strategy, kind)
    own = part.metrics(getattr(state, field))
    with config_errors(f'sync.{kind}'):
      tasks.check_names(str(part), own)
    for name, value in own.items():
      if name in taken or jnp.ndim(value):
        why = 'is a built-in column' if name in taken else 'is not a number'
        raise ConfigError(
          f'config.sync.{kind}: {part} reports {name!r}, which {why}'
        )
    reported = {**own, **reported}
  return reported


def _rested(strategy, state, of_one):
  """Returns the result of `take`, for a worker that rests.

  Its metrics cover no example, so they are not finite. `of_one` has the shapes
  of a step's metrics.
  """
  _, metrics, change, _ = of_one
  nothing = jax.tree.map(jnp.zeros_like, state.trained)
  triggered = strategy.trigger.update(
    nothing, state.trigger_state, state.trained
  )[1]
  state = state.replace(
    step=state.step + 1,
    opt_state=move_schedules(state.opt_state, lambda count: count + 1),
    trigger_state=triggered,
  )
  absent = {name: _full(x, jnp.nan) for name, x in metrics.items()}
  absent |= {'count': _full(metrics['count'], 0)}
  return state, absent, _full(change, jnp.nan), triggered.sync


def _full(shape, value):
  return jnp.full(shape.shape, value, shape.dtype)


def _local_update(strategy, optimizer, state, grads, model_state):
  """Returns the state after the local update, the change, and the vote."""
  params, trained, frozen = state.params, state.trained, state.frozen
  grads = frozen.rest(grads)
  _, measured = strategy.measure.update(grads, state.measure_state)

  def reduced_update(sync):
    reduced, reducer = strategy.reducer.update(
      grads, state.reducer_state, trained, sync=sync
    )
    reduced = frozen.put_rest(optax.tree.zeros_like(params), reduced)
    return *optimizer.update(reduced, state.opt_state, params), reducer

  def decide(**applied):
    own = state.trigger_state, trained
    return strategy.trigger.update(grads, *own, **applied)[1]

  if strategy.trigger.traits.sees_update:
    updates, opt_state, reducer = reduced_update(None)
    applied = frozen.rest(updates)
    triggered = decide(applied=applied)
  else:
    triggered = decide()
    updates, opt_state, reducer = reduced_update(triggered.sync)
  state = state.replace(
    step=state.step + 1,
    params=optax.apply_updates(params, updates),
    # A batch whose gradient is NaN spoils the batch statistics too.
    model_state=optax.tree.where(
      jnp.isnan(measured.change), state.model_state, model_state
    ),
    opt_state=opt_state,
    measure_state=measured,
    trigger_state=triggered,
    reducer_state=reducer,
  )
  return state, measured.change, triggered.sync


def _synchronization(strategy, optimizer, check_every):
  """Returns `(sync, state) -> (state, synced, unequal)`.

  It has the only `lax.cond` that communicates.
  """
  averager = strategy.averager
  # A conditional may copy what passes through it.
  always = ['params', 'averager_state', 'syncs']
  if strategy.averages_model_state:
    always += ['model_state']
  if strategy.optimizer_state.changes:
    always += ['moments_state']

  def synchronize(sync, state):
    changing = [*always]
    if state.copies.names or strategy.optimizer_state.changes:
      changing += ['opt_state']

    def average(changed):
      new = state.replace(**changed)
      shared, averager_state = averager.when_due(
        strategy.averaged(new.shared), new.averager_state
      )
      new = new.with_shared(shared)
      new = new.replace(averager_state=averager_state, syncs=new.syncs + 1)
      if strategy.optimizer_state.changes:
        fresh = state.copies.rest(optimizer.init(new.params))
        moments, moments_state = strategy.optimizer_state.apply(
          new.moments, fresh, new.moments_state
        )
        opt_state = state.copies.put_rest(new.opt_state, moments)
        new = new.replace(opt_state=opt_state, moments_state=moments_state)
      unequal = jnp.int32(-1)
      if check_every and strategy.keeps_replicas_equal:
        unequal = lax.cond(
          new.syncs % check_every == 0,
          replicas.first_difference,
          lambda params: jnp.int32(-1),
          new.params,
        )
      return {name: getattr(new, name) for name in changing}, unequal

    changed, unequal = lax.cond(
      averager.due(sync, state.averager_state),
      average,
      lambda changed: (changed, jnp.int32(-1)),
      {name: getattr(state, name) for name in changing},
    )
    state = state.replace(**changed)
    synced, averager_state = averager.depart(
      sync, strategy.averaged(state.shared), state.averager_state
    )
    return state.replace(averager_state=averager_state), synced, unequal

  return synchronize
