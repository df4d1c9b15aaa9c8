"""Mistakes in custom training loops, and the line that each must end with.

A row is a mistake that somebody makes with a loop of four workers. The loop
either works all the same, or an error or a warning of one line names the
mistake and the way out.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import selsync_jax as ss
from selsync_jax.sync.triggers import EveryState

N = 4
RIGHT = 'right'


class Mistake(NamedTuple):
  """A mistake in a custom training loop.

  Attributes:
    name: the mistake in a few words, the id of its test.
    loop: the loop with the mistake. If the loop is right all the same, it
      returns two trees that must be equal to rounding.
    line: a regular expression for the error or warning, or `RIGHT`.
  """

  name: str
  loop: Callable[[], Any]
  line: str


def selective(*others: optax.GradientTransformation) -> Any:
  """Returns SGD with SelSync first, and the other transformations behind it."""
  return optax.chain(ss.selsync(0.3), *others, optax.sgd(0.1))


TX = selective()


def loss(params, batch):
  """Returns the squared error of a linear model on one worker's batch."""
  return jnp.mean((batch['x'] @ params['w'] - batch['y']) ** 2)


def start(worker):
  """Returns parameters and optimizer state of one worker."""
  del worker
  params = {'w': jnp.zeros(3)}
  return params, TX.init(params)


def step(state, batch):
  """Takes one worker's step, without a mistake."""
  params, opt_state = state
  grads = jax.grad(loss)(params, batch)
  updates, opt_state = TX.update(grads, opt_state, params)
  params = optax.apply_updates(params, updates)
  params = ss.synchronize(ss.decision(opt_state), params)
  return params, opt_state


def steps_of(
  grads: Any = lambda grads: grads,
  average: Any = ss.synchronize,
  flag: Any = lambda grads, old, new: ss.decision(new),
  tx: Any = TX,
) -> Callable[[Any, Any], Any]:
  """Returns `step`, with one of its lines replaced."""

  def step(state, batch):
    params, old = state
    gradient = grads(jax.grad(loss)(params, batch))
    updates, new = tx.update(gradient, old, params)
    params = optax.apply_updates(params, updates)
    sync = flag(gradient, old, new)
    return average(sync, params), new

  return step


def rows_of(fn: Any) -> Any:
  """Returns a function of one worker as one of blocks with one row."""

  def block(*rows):
    result = fn(*jax.tree.map(lambda x: x.squeeze(0), rows))
    return jax.tree.map(lambda x: x[None], result)

  return block


def shard_map(block: Any, **options: Any) -> Any:
  """Returns a compiled function of blocks over four workers."""
  mesh = jax.sharding.Mesh(jax.devices()[:N], (ss.AXIS,))
  row = jax.P(ss.AXIS)
  options = {'in_specs': row, 'out_specs': row} | options
  return jax.jit(jax.shard_map(block, mesh=mesh, **options))


def stacked(tx: Any = TX) -> Any:
  """Returns the state that all workers start from."""
  params = {'w': jnp.zeros((N, 3))}
  return params, jax.vmap(tx.init)(params)


def batches(*leading: int) -> dict[str, np.ndarray]:
  """Returns a batch with these leading axes, on the host."""
  x = np.random.default_rng(0).normal(size=(*leading, 3)).astype(np.float32)
  return {'x': x, 'y': x.sum(-1)}


def batch_not_stacked():
  layout = ss.Layout(N)
  layout.map_workers(step)(layout.create(start), batches(32))


def batch_of_a_loader_on_the_device():
  layout = ss.Layout(N)
  batch = jax.tree.map(jnp.asarray, batches(30))
  layout.map_workers(step)(layout.create(start), batch)


def batch_not_stacked_for_workers_of_two_devices():
  layout = ss.Layout(N, data=2)
  layout.map_workers(step)(layout.create(start), batches(32))


def state_of_more_workers():
  layout = ss.Layout(N)
  saved = jax.device_get(ss.Layout(2 * N).create(start))
  layout.map_workers(step)(saved, batches(N, 8))


def learning_rate_without_rows():
  layout = ss.Layout(N)
  layout.map_workers(lambda batch, rate: rate)(batches(N, 8), 0.1)


def gradients_averaged():
  average = functools.partial(jax.lax.pmean, axis_name=ss.AXIS)
  step = steps_of(grads=average)
  shard_map(rows_of(step))(stacked(), batches(N, 8))


def parameters_with_an_empty_spec():
  same, row = jax.P(), jax.P(ss.AXIS)

  def block(params, opt_state, batch):
    opt_state, batch = jax.tree.map(lambda x: x.squeeze(0), (opt_state, batch))
    params, opt_state = step((params, opt_state), batch)
    return params, jax.tree.map(lambda x: x[None], opt_state)

  specs = {'in_specs': (same, row, row), 'out_specs': (same, row)}
  _, opt_state = stacked()
  shard_map(block, **specs)({'w': jnp.zeros(3)}, opt_state, batches(N, 8))


def parameters_with_keys_of_their_workers():
  def init(worker):
    key = jax.random.fold_in(jax.random.key(0), worker)
    params = {'w': jax.random.normal(key, 3)}
    return params, TX.init(params)

  ss.Layout(N).create(init)


def large(grads, old, new):
  """Returns a flag that nobody has voted on."""
  del old, new
  return optax.tree.norm(grads) > 1


def flag_of_one_worker_under_shard_map():
  shard_map(rows_of(steps_of(flag=large)))(stacked(), batches(N, 8))


def flag_of_one_worker_under_vmap():
  step = jax.vmap(steps_of(flag=large), axis_name=ss.AXIS)
  step(stacked(), batches(N, 8))


def flag_of_the_state_under_shard_map():
  step = steps_of(flag=lambda grads, old, new: new[0].sync)
  shard_map(rows_of(step))(stacked(), batches(N, 8))


def decision_of_the_step_before():
  step = steps_of(flag=lambda grads, old, new: ss.decision(old))
  jax.pmap(step, ss.AXIS)(stacked(), batches(N, 8))


def whole_state_averaged():
  def step_and_average(state, batch):
    params, opt_state = steps_of(average=lambda sync, params: params)(
      state, batch
    )
    return ss.synchronize(ss.decision(opt_state), (params, opt_state))

  jax.vmap(step_and_average, axis_name=ss.AXIS)(stacked(), batches(N, 8))


def parts_of_a_model_by_hand(**options):
  mesh = jax.make_mesh(
    (2, 2), (ss.AXIS, 'fsdp'), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  part = jax.P(ss.AXIS, 'fsdp')

  def block(grads):
    return TX.update(grads, TX.init(grads))[0]

  jax.shard_map(block, mesh=mesh, in_specs=part, out_specs=part, **options)(
    jnp.ones((2, 4))
  )


def parts_of_a_model_unchecked():
  parts_of_a_model_by_hand(check_vma=False)


def two_axes_named():
  ss.selsync(0.3, axis_name=(ss.AXIS, 'fsdp'))


def steps_in_a_scan(tx=TX):
  step, batch = steps_of(tx=tx), batches(N, 6, 8)

  def scan(state, batches):
    return jax.lax.scan(lambda *args: (step(*args), None), state, batches)[0]

  found, state = shard_map(rows_of(scan))(stacked(tx), batch), stacked(tx)
  one = jax.jit(jax.vmap(step, axis_name=ss.AXIS))
  for x, y in zip(*(x.swapaxes(0, 1) for x in batch.values()), strict=True):
    state = one(state, {'x': x, 'y': y})
  return found, state


def decision_of_multi_steps_with_an_empty_spec():
  tx = optax.MultiSteps(TX, 2)

  def block(state, batch):
    state, batch = jax.tree.map(lambda x: x.squeeze(0), (state, batch))
    _, opt_state = steps_of(tx=tx)(state, batch)
    return ss.decision(opt_state)

  mapped = shard_map(block, out_specs=jax.P())
  return mapped(stacked(tx), batches(N, 8)), np.False_


def train_stacked(tx):
  """Trains under vmap with this optimizer; fits no line if that works."""
  step = steps_of(tx=tx)
  jax.vmap(step, axis_name=ss.AXIS)(stacked(tx), batches(N, 8))


def trigger_in_apply_if_finite():
  tx = optax.apply_if_finite(selective(), 5)
  step = rows_of(steps_of(tx=tx))
  shard_map(step)(stacked(tx), batches(N, 8))


def average(tree):
  """Averages a tree of each worker at a synchronization."""
  averager = ss.mean()
  jax.vmap(
    lambda _: averager.step(jnp.bool(True), tree, averager.init(tree)),
    axis_name=ss.AXIS,
  )(jnp.arange(N))


def delayed_average_in_a_condition():
  averager = ss.delayed(ss.mean(), 2)

  def worker(params):
    return jax.lax.cond(
      jnp.bool(True),
      averager.apply,
      lambda *same: same,
      *(params, averager.init(params)),
    )

  jax.vmap(worker, axis_name=ss.AXIS)(jnp.ones((N, 3)))


def statistics_averaged_beside_averaged_gradients():
  tx = optax.chain(ss.every(1), optax.sgd(0.1))
  average = functools.partial(jax.lax.pmean, axis_name=ss.AXIS)
  step, batch = steps_of(grads=average, tx=tx), batches(N, 8)
  one = jax.vmap(step, axis_name=ss.AXIS)
  return shard_map(rows_of(step))(stacked(tx), batch), one(stacked(tx), batch)


def decided(trigger, keep, **given):
  """Returns what each worker decides by the state that `keep` returns."""

  def worker(grads):
    state = trigger.init(grads)
    state = trigger.update(grads, state, grads, **given)[1]
    return ss.decision(keep(state))

  return jax.vmap(worker, axis_name=ss.AXIS)(jnp.ones((N, 3))), np.ones(N, bool)


def state_beside_that_of_multi_steps():
  other = optax.MultiSteps(optax.sgd(0.1), 2).init(jnp.ones(3))
  return decided(TX, lambda state: (state, other))


def state_of_fda_beside_a_count():
  trigger = ss.any_of(ss.fda(0.1), ss.every(1))
  return decided(trigger, lambda state: (state, jnp.int32(0)))


@jax.tree_util.register_pytree_node_class
class Box:
  """A pytree without keys, which holds one child."""

  def __init__(self, inside):
    self.inside = inside

  def tree_flatten(self):
    """Returns the child."""
    return (self.inside,), None

  @classmethod
  def tree_unflatten(cls, _, children):
    """Returns a box of the child."""
    return cls(*children)


def state_in_a_class_without_keys():
  return decided(TX, Box)


def gradients_and_updates_given_by_hand():
  trigger = ss.any_of(ss.selsync(0.3), ss.fda(0.1))
  return decided(trigger, lambda state: state, applied=-jnp.ones(3))


def trigger_with_one_flag():
  always = ss.Trigger(
    lambda params: EveryState(jnp.int32(0), jnp.bool(True)),
    lambda updates, state, params=None, **_: (updates, state),
  )
  _, state = always.update(jnp.ones(3), always.init(jnp.ones(3)))
  return ss.decision(state), np.True_


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
  """A model with a field of the name that a trigger's flag has."""

  sync: Any


def model_with_a_field_sync():
  model = jax.vmap(
    lambda w: ss.synchronize(jnp.bool(True), Model(w)), axis_name=ss.AXIS
  )(jnp.arange(4.0))
  return model.sync, np.full(4, 1.5)


class Layer(NamedTuple):
  """A layer whose activation is a leaf, as in an equinox module."""

  weight: Any
  activation: Any = jax.nn.relu


_NOT_AGREED = '^the flag may differ between workers, '

MISTAKES = [
  Mistake(
    'a batch is not stacked',
    batch_not_stacked,
    r"^argument 1\['x'\] has leading axis 32, for 4 workers: pass a row for "
    r'each worker; a batch is stacked as \[4, 8, 3\]',
  ),
  Mistake(
    'a batch is not stacked, and 4 workers cannot share it evenly',
    batch_of_a_loader_on_the_device,
    r"^argument 1\['x'\] has leading axis 30, for 4 workers: pass a row for "
    r'each worker; a batch is stacked as \[4, examples, 3\]',
  ),
  Mistake(
    'a batch is not stacked, and a worker has two devices',
    batch_not_stacked_for_workers_of_two_devices,
    r"^argument 1\['x'\] has leading axis 32, for 4 workers: pass a row for "
    r'each worker; a batch is stacked as \[4, 8, 3\]',
  ),
  Mistake(
    'the state is that of more workers',
    state_of_more_workers,
    r"^argument 0\[0\]\['w'\] has leading axis 8, for 4 workers: ",
  ),
  Mistake(
    'a number is passed that is not stacked',
    learning_rate_without_rows,
    '^argument 1 has no leading axis, for 4 workers: pass a row',
  ),
  Mistake(
    'fda is first in the chain, where it measures gradients',
    lambda: train_stacked(optax.chain(ss.fda(0.1), optax.sgd(0.1))),
    r'^fda measures updates, and .*: optax.chain\(..., ss.fda\(theta\)\)$',
  ),
  Mistake(
    'fda is before the last transformation',
    lambda: train_stacked(
      optax.chain(optax.adam(0.1), ss.fda(0.1), optax.scale(0.5))
    ),
    '^fda measures updates, and transformations after it may change them; put',
  ),
  Mistake(
    'fda is in any_of, and that is first',
    lambda: train_stacked(
      optax.chain(ss.any_of(ss.fda(0.1), ss.every(2)), optax.sgd(0.1))
    ),
    '^fda measures updates, ',
  ),
  Mistake(
    'a trigger wants raw gradients and updates',
    lambda: train_stacked(
      optax.chain(ss.any_of(ss.selsync(0.3), ss.fda(0.1)), optax.sgd(0.1))
    ),
    '^the trigger measures gradients and updates, and no place in a chain ',
  ),
  Mistake(
    'MultiSteps comes after the trigger',
    lambda: train_stacked(
      optax.chain(ss.selsync(0.3), optax.MultiSteps(optax.sgd(0.1), 4))
    ),
    r'at every micro-step, .*: optax.MultiSteps\(optax.chain\(trigger, ',
  ),
  Mistake(
    'a budget is a share of the link',
    lambda: train_stacked(
      optax.chain(ss.budgeted(ss.selsync(0.3), link_share=0.5), optax.sgd(0.1))
    ),
    '^link_share is for islands, .*; set lssr',
  ),
  Mistake(
    'a budget is in bytes',
    lambda: train_stacked(
      optax.chain(
        ss.budgeted(ss.selsync(0.3), bytes_per_step=99.0), optax.sgd(0.1)
      )
    ),
    '^bytes_per_step=99.0: a trigger in a chain .*; set lssr = 1 - ',
  ),
  Mistake(
    'inject_hyperparams makes arrays of all arguments',
    lambda: train_stacked(optax.inject_hyperparams(ss.selsync)(delta=0.3)),
    '^selsync: vote_delay, vote_every must not .* static_args: '
    "'vote_delay', 'vote_every'$",
  ),
  Mistake(
    'inject_hyperparams makes an array of a period',
    lambda: train_stacked(optax.inject_hyperparams(ss.every)(k=3)),
    "^every: k must not be an array; .* static_args: 'k'$",
  ),
  Mistake(
    'a mask leaves the trigger no gradient',
    lambda: train_stacked(optax.masked(ss.selsync(0.3), False)),
    '^the gradient that the trigger measures has no arrays; put the trigger be',
  ),
  Mistake(
    'a delayed averager runs only at synchronizations',
    delayed_average_in_a_condition,
    r'^averager delayed\(mean\(\), 2\) has work to do at every step',
  ),
  Mistake(
    'apply_if_finite is around the trigger under shard_map',
    trigger_in_apply_if_finite,
    '^ApplyIfFinite does not run the trigger inside it at every call; put the',
  ),
  Mistake(
    'an nnx module is averaged by reference',
    lambda: average(nnx.Linear(2, 2, rngs=nnx.Rngs(0))),
    r'^Linear is an nnx.Module, .*: nnx.update\(model, ss.synchronize\(sync, ',
  ),
  Mistake(
    'a module with functions in it is averaged',
    lambda: average({'layers': [Layer(jnp.ones(2))]}),
    r'^layers/0/activation is a \w+, not an array; pass arrays alone',
  ),
  Mistake(
    'a module with functions in it is optimized',
    lambda: TX.init([Layer(jnp.ones(2))]),
    r'^0/activation is a \w+, not an array; pass arrays alone',
  ),
  Mistake(
    'gradients are averaged before the trigger',
    gradients_averaged,
    r"^the gradients are equal .*; give the trigger each worker's own gradie",
  ),
  Mistake(
    'parameters have an empty spec',
    parameters_with_an_empty_spec,
    '^the parameters are one value for all workers, ',
  ),
  Mistake(
    'each worker starts with parameters of its own',
    parameters_with_keys_of_their_workers,
    r"^init: state\[0\]\['w'\] depends on the worker; parameters must ",
  ),
  Mistake(
    'a flag that nobody voted on, under shard_map',
    flag_of_one_worker_under_shard_map,
    _NOT_AGREED,
  ),
  Mistake(
    'a flag that nobody voted on, under vmap',
    flag_of_one_worker_under_vmap,
    _NOT_AGREED,
  ),
  Mistake(
    'the flag is taken from the state without ss.decision',
    flag_of_the_state_under_shard_map,
    _NOT_AGREED,
  ),
  Mistake(
    'the decision is read from the state before the update',
    decision_of_the_step_before,
    '^the decision is that of the step before: ',
  ),
  Mistake(
    'the optimizer state is averaged with the parameters',
    whole_state_averaged,
    '^the tree holds the state of a trigger',
  ),
  Mistake(
    'each device of a worker has a part of the model',
    parts_of_a_model_by_hand,
    "^the devices along 'fsdp' may hold different parts of a worker",
  ),
  Mistake(
    'each device of a worker has a part of the model, and types are unchecked',
    parts_of_a_model_unchecked,
    "^the devices along 'fsdp' may .*; or, if it splits the batch, keep check_"
    "vma on, and average the gradient over 'fsdp' first$",
  ),
  Mistake(
    'the vote goes over two axes',
    two_axes_named,
    r"^axis_name=\('workers', 'fsdp'\): must be one axis, .* axis_names=",
  ),
  Mistake('steps are scanned inside shard_map', steps_in_a_scan, RIGHT),
  Mistake(
    'batch statistics are averaged beside averaged gradients',
    statistics_averaged_beside_averaged_gradients,
    RIGHT,
  ),
  Mistake(
    'the state is beside that of MultiSteps',
    state_beside_that_of_multi_steps,
    RIGHT,
  ),
  Mistake(
    'the state of fda is beside a count', state_of_fda_beside_a_count, RIGHT
  ),
  Mistake(
    'the state is in a pytree class without keys',
    state_in_a_class_without_keys,
    RIGHT,
  ),
  Mistake(
    'a trigger is given gradients and updates by hand',
    gradients_and_updates_given_by_hand,
    RIGHT,
  ),
  Mistake('a trigger returns the same flag', trigger_with_one_flag, RIGHT),
  Mistake('a model has a field sync', model_with_a_field_sync, RIGHT),
  Mistake(
    'the decision of MultiSteps is returned with an empty spec',
    decision_of_multi_steps_with_an_empty_spec,
    RIGHT,
  ),
]
