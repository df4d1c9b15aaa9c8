"""Mistakes in custom training loops end in one line, or do no harm.

Each `mistake` is a training loop of four workers with a user's mistake. The
loop either works all the same, or ends in a one-line error or warning that
names the mistake and the way out.
"""

import dataclasses
import functools
import re
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.sync.triggers import EveryState
from tests.support.blocks import ROW, rows_of, shard_map

N = 4
SGD = optax.sgd(0.1)
TX = optax.chain(ss.selsync(0.3), SGD)
PMEAN = functools.partial(jax.lax.pmean, axis_name=ss.AXIS)
MISTAKES = []


def mistake(line=None):
  """Adds a loop whose error or warning matches `line`.

  A loop without a line is correct, and returns two trees that must be equal to
  rounding.
  """

  def add(loop):
    name = loop.__name__.replace('_', ' ')
    MISTAKES.append(pytest.param(loop, line, id=name))
    return loop

  return add


def steps_of(
  grads=lambda grads: grads,
  average=ss.synchronize,
  flag=lambda grads, old, new: ss.decision(new),
  tx=TX,
):
  """Returns one worker's step, with one of its lines replaced."""

  def loss(params, batch):
    return jnp.mean((batch['x'] @ params['w'] - batch['y']) ** 2)

  def step(state, batch):
    params, old = state
    gradient = grads(jax.grad(loss)(params, batch))
    updates, new = tx.update(gradient, old, params)
    params = optax.apply_updates(params, updates)
    sync = flag(gradient, old, new)
    return average(sync, params), new

  return step


def start(worker):
  """Returns parameters and optimizer state of one worker."""
  del worker
  params = {'w': jnp.zeros(3)}
  return params, TX.init(params)


def vmap(fn):
  return jax.vmap(fn, axis_name=ss.AXIS)


def stacked(tx=TX):
  """Returns the state that all workers start from."""
  params = {'w': jnp.zeros((N, 3))}
  return params, jax.vmap(tx.init)(params)


def batches(*leading):
  """Returns a batch with these leading axes, on the host."""
  x = np.random.default_rng(0).normal(size=(*leading, 3)).astype(np.float32)
  return {'x': x, 'y': x.sum(-1)}


def train(*parts):
  """Trains under vmap with these transformations; gives no line if it works."""
  tx = optax.chain(*parts)
  vmap(steps_of(tx=tx))(stacked(tx), batches(N, 8))


def train_layout(batch, layout=None, state=None):
  layout = layout or ss.Layout(N)
  layout.map_workers(steps_of())(state or layout.create(start), batch)


NOT_STACKED = (
  r"^argument 1\['x'\] has leading axis {}, for 4 workers: pass a row for each "
  r'worker; a batch is stacked as \[4, {}, 3\]'
).format


@mistake(NOT_STACKED(32, 8))
def a_batch_is_not_stacked():
  train_layout(batches(32))


@mistake(NOT_STACKED(30, 'examples'))
def a_batch_is_not_stacked_and_4_workers_cannot_share_it_evenly():
  train_layout(jax.tree.map(jnp.asarray, batches(30)))


@mistake(NOT_STACKED(32, 8))
def a_batch_is_not_stacked_and_a_worker_has_two_devices():
  train_layout(batches(32), ss.Layout(N, data=2))


@mistake(r"^argument 0\[0\]\['w'\] has leading axis 8, for 4 workers: ")
def the_state_is_that_of_more_workers():
  saved = jax.device_get(ss.Layout(2 * N).create(start))
  train_layout(batches(N, 8), state=saved)


@mistake('^argument 1 has no leading axis, for 4 workers: pass a row')
def a_number_is_passed_that_is_not_stacked():
  layout = ss.Layout(N)
  layout.map_workers(lambda batch, rate: rate)(batches(N, 8), 0.1)


@mistake(r'^fda measures updates, and .*: optax.chain\(..., ss.fda\(theta\)\)$')
def fda_is_first_in_the_chain_where_it_measures_gradients():
  train(ss.fda(0.1), SGD)


@mistake('^fda measures updates, and transformations after it may change them;')
def fda_is_before_the_last_transformation():
  train(optax.adam(0.1), ss.fda(0.1), optax.scale(0.5))


@mistake('^fda measures updates, ')
def fda_is_in_any_of_and_that_is_first():
  train(ss.any_of(ss.fda(0.1), ss.every(2)), SGD)


@mistake('^the trigger measures gradients and updates, and no place in a chain')
def a_trigger_wants_raw_gradients_and_updates():
  train(ss.any_of(ss.selsync(0.3), ss.fda(0.1)), SGD)


@mistake(r'at every micro-step, .*: optax.MultiSteps\(optax.chain\(trigger, ')
def multi_steps_comes_after_the_trigger():
  train(ss.selsync(0.3), optax.MultiSteps(SGD, 4))


@mistake('^link_share is for islands, .*; set lssr')
def a_budget_is_a_share_of_the_link():
  train(ss.budgeted(ss.selsync(0.3), link_share=0.5), SGD)


@mistake('^bytes_per_step=99.0: a trigger in a chain .*; set lssr = 1 - ')
def a_budget_is_in_bytes():
  train(ss.budgeted(ss.selsync(0.3), bytes_per_step=99.0), SGD)


@mistake(
  '^selsync: vote_delay, vote_every must not .* static_args: '
  "'vote_delay', 'vote_every'$"
)
def inject_hyperparams_makes_arrays_of_all_arguments():
  train(optax.inject_hyperparams(ss.selsync)(delta=0.3))


@mistake("^every: k must not be an array; .* static_args: 'k'$")
def inject_hyperparams_makes_an_array_of_a_period():
  train(optax.inject_hyperparams(ss.every)(k=3))


@mistake('^the gradient that the trigger measures has no arrays; put the trigg')
def a_mask_leaves_the_trigger_no_gradient():
  train(optax.masked(ss.selsync(0.3), False))


@mistake(r'^averager delayed\(mean\(\), 2\) has work to do at every step')
def a_delayed_averager_runs_only_at_synchronizations():
  averager = ss.delayed(ss.mean(), 2)

  def worker(params):
    return jax.lax.cond(
      jnp.bool(True),
      averager.apply,
      lambda *same: same,
      *(params, averager.init(params)),
    )

  vmap(worker)(jnp.ones((N, 3)))


@mistake('^ApplyIfFinite does not run the trigger inside it at every call; put')
def apply_if_finite_is_around_the_trigger_under_shard_map():
  tx = optax.apply_if_finite(TX, 5)
  shard_map(rows_of(steps_of(tx=tx)))(stacked(tx), batches(N, 8))


def average(tree):
  """Averages a tree of each worker at a synchronization."""
  averager = ss.mean()
  state = averager.init(tree)
  vmap(lambda _: averager.step(jnp.bool(True), tree, state))(jnp.arange(N))


@mistake(r'^Linear is an nnx.Module, .*: nnx.update\(model, ss.synchronize\(s')
def an_nnx_module_is_averaged_by_reference():
  average(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))


@mistake(r"^the gradients are equal .*; give the trigger each worker's own gra")
def gradients_are_averaged_before_the_trigger():
  shard_map(rows_of(steps_of(grads=PMEAN)))(stacked(), batches(N, 8))


@mistake('^the parameters are one value for all workers, ')
def parameters_have_an_empty_spec():
  same = jax.P()

  def block(params, opt_state, batch):
    opt_state, batch = jax.tree.map(lambda x: x.squeeze(0), (opt_state, batch))
    params, opt_state = steps_of()((params, opt_state), batch)
    return params, jax.tree.map(lambda x: x[None], opt_state)

  specs = {'in_specs': (same, ROW, ROW), 'out_specs': (same, ROW)}
  _, opt_state = stacked()
  shard_map(block, **specs)({'w': jnp.zeros(3)}, opt_state, batches(N, 8))


@mistake(r"^init: state\[0\]\['w'\] depends on the worker; parameters must ")
def each_worker_starts_with_parameters_of_its_own():
  def init(worker):
    key = jax.random.fold_in(jax.random.key(0), worker)
    params = {'w': jax.random.normal(key, 3)}
    return params, TX.init(params)

  ss.Layout(N).create(init)


NOT_AGREED = '^the flag may differ between workers, '


def large(grads, old, new):
  """Returns a flag that no worker has voted on."""
  del old, new
  return optax.tree.norm(grads) > 1


@mistake(NOT_AGREED)
def a_flag_that_nobody_voted_on_under_shard_map():
  shard_map(rows_of(steps_of(flag=large)))(stacked(), batches(N, 8))


@mistake(NOT_AGREED)
def a_flag_that_nobody_voted_on_under_vmap():
  vmap(steps_of(flag=large))(stacked(), batches(N, 8))


@mistake(NOT_AGREED)
def the_flag_is_taken_from_the_state_without_ss_decision():
  step = steps_of(flag=lambda grads, old, new: new[0].sync)
  shard_map(rows_of(step))(stacked(), batches(N, 8))


@mistake('^the decision is from the step before: ')
def the_decision_is_read_from_the_state_before_the_update():
  step = steps_of(flag=lambda grads, old, new: ss.decision(old))
  jax.pmap(step, ss.AXIS)(stacked(), batches(N, 8))


@mistake('^the tree holds the state of a trigger')
def the_optimizer_state_is_averaged_with_the_parameters():
  local = steps_of(average=lambda sync, params: params)

  def step_and_average(state, batch):
    params, opt_state = local(state, batch)
    return ss.synchronize(ss.decision(opt_state), (params, opt_state))

  vmap(step_and_average)(stacked(), batches(N, 8))


@mistake("^the devices along 'fsdp' may hold different parts of a worker")
def each_device_of_a_worker_has_a_part_of_the_model(**options):
  mesh = jax.make_mesh(
    (2, 2), (ss.AXIS, 'fsdp'), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  part = jax.P(ss.AXIS, 'fsdp')

  def block(grads):
    return TX.update(grads, TX.init(grads))[0]

  jax.shard_map(block, mesh=mesh, in_specs=part, out_specs=part, **options)(
    jnp.ones((2, 4))
  )


@mistake(
  "^the devices along 'fsdp' may .*; or, if it splits the batch, keep check_"
  "vma on, and average the gradient over 'fsdp' first$"
)
def each_device_has_a_part_of_the_model_and_types_are_unchecked():
  each_device_of_a_worker_has_a_part_of_the_model(check_vma=False)


@mistake(r"^axis_name=\('workers', 'fsdp'\): must be one axis, .* axis_names=")
def the_vote_goes_over_two_axes():
  ss.selsync(0.3, axis_name=(ss.AXIS, 'fsdp'))


@mistake()
def the_decision_of_multi_steps_is_returned_with_an_empty_spec():
  tx = optax.MultiSteps(TX, 2)

  def block(state, batch):
    state, batch = jax.tree.map(lambda x: x.squeeze(0), (state, batch))
    _, opt_state = steps_of(tx=tx)(state, batch)
    return ss.decision(opt_state)

  mapped = shard_map(block, out_specs=jax.P())
  return mapped(stacked(tx), batches(N, 8)), np.False_


@mistake()
def batch_statistics_are_averaged_beside_averaged_gradients():
  tx = optax.chain(ss.every(1), SGD)
  step, batch = steps_of(grads=PMEAN, tx=tx), batches(N, 8)
  mapped = shard_map(rows_of(step))
  return mapped(stacked(tx), batch), vmap(step)(stacked(tx), batch)


def decided(trigger, keep, **given):
  """Returns each worker's decision, from the state that `keep` returns."""

  def worker(grads):
    state = trigger.init(grads)
    state = trigger.update(grads, state, grads, **given)[1]
    return ss.decision(keep(state))

  return vmap(worker)(jnp.ones((N, 3))), np.ones(N, bool)


@mistake()
def the_state_is_beside_that_of_multi_steps():
  other = optax.MultiSteps(SGD, 2).init(jnp.ones(3))
  return decided(TX, lambda state: (state, other))


@mistake()
def the_state_of_fda_is_beside_a_count():
  trigger = ss.any_of(ss.fda(0.1), ss.every(1))
  return decided(trigger, lambda state: (state, jnp.int32(0)))


@jax.tree_util.register_pytree_node_class
class Box:
  """A pytree without keys, which holds one child."""

  def __init__(self, inside):
    self.inside = inside

  def tree_flatten(self):
    return (self.inside,), None

  @classmethod
  def tree_unflatten(cls, _, children):
    return cls(*children)


@mistake()
def the_state_is_in_a_pytree_class_without_keys():
  return decided(TX, Box)


@mistake()
def a_trigger_is_given_gradients_and_updates_by_hand():
  trigger = ss.any_of(ss.selsync(0.3), ss.fda(0.1))
  return decided(trigger, lambda state: state, applied=-jnp.ones(3))


@mistake()
def a_trigger_returns_the_same_flag():
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


@mistake()
def a_model_has_a_field_sync():
  model = vmap(lambda w: ss.synchronize(jnp.bool(True), Model(w)))
  return model(jnp.arange(4.0)).sync, np.full(4, 1.5)


@pytest.mark.parametrize('loop, line', MISTAKES)
def test_a_mistake_in_a_custom_loop_is_named_in_one_line_or_harmless(
  loop, line
):
  if line is None:
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, *loop())
    return
  with pytest.raises(Exception) as error:  # noqa: PT011
    loop()  # A warning is an error here.
  found = str(error.value).partition('\n----')[0]  # JAX appends a note.
  assert re.search(line, found) and '\n' not in found
