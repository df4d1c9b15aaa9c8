"""Custom steps over a custom mesh."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
import numpy as np
import optax
import pytest

import selsync_jax as ss
from tests.support.blocks import ROW, rows_of

KINDS = [AxisType.Auto, AxisType.Explicit]


def trained(step, tx, place):
  """Parameters and the optimizer's state after each of six steps."""
  w, found = np.ones((4, 3), np.float32), []
  state = place((w, jax.vmap(tx.init)(w)))
  for i in range(6):
    x = np.random.default_rng(i).normal(size=(4, 3)).astype(np.float32)
    state = step(*state, place(x))
    found.append(jax.device_get(state))
  return found


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('check_vma', [True, False])
@pytest.mark.parametrize('given', [jax.set_mesh, contextlib.nullcontext])
def test_a_step_on_a_mesh_trains_as_vmap_does(kind, check_vma, given):
  tx = optax.chain(ss.budgeted(ss.selsync(0.3), lssr=0.5), optax.sgd(0.1))

  def step(w, state, x):
    updates, state = tx.update(2 * (w @ x) * x, state, w)
    w = optax.apply_updates(w, updates)
    return ss.synchronize(ss.decision(state), w), state

  vmapped = jax.jit(jax.vmap(step, axis_name=ss.AXIS))
  expected = trained(vmapped, tx, lambda tree: tree)
  mesh = jax.make_mesh((4,), (ss.AXIS,), axis_types=(kind,))
  rows = jax.NamedSharding(mesh, ROW)
  with given(mesh):
    mapped = jax.shard_map(
      rows_of(step),
      mesh=None if given is jax.set_mesh else mesh,
      in_specs=ROW,
      out_specs=ROW,
      check_vma=check_vma,
    )
    found = trained(jax.jit(mapped), tx, lambda x: jax.device_put(x, rows))
  flags = [state[0].sync for _, state in expected]
  assert {bool(sync[0]) for sync in flags} == {True, False}
  np.testing.assert_array_equal([state[0].sync for _, state in found], flags)
  # Newer compilers add one worker's squares in another order than all workers'.
  # A change is a difference of such sums and shows their last bit.
  close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
  jax.tree.map(close, found, expected)


def over_two_axes(fn, name, kind):
  """A function over workers, and a tree with one leaf that is split twice."""
  mesh = jax.make_mesh((2, 2), (ss.AXIS, name), axis_types=(kind, kind))
  x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
  both = jax.P(*ROW, None, name)
  tree = {
    'twice': jax.device_put(x, jax.NamedSharding(mesh, both)),
    'once': jax.device_put(x, jax.NamedSharding(mesh, ROW)),
  }
  mapped = jax.shard_map(
    rows_of(fn), mesh=mesh, in_specs=ROW, out_specs=ROW, axis_names={ss.AXIS}
  )
  return jax.jit(mapped), tree


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('name', ['data', 'fsdp', 'model'])
def test_a_mesh_may_have_another_axis_of_any_name(name, kind):
  consensus, tree = over_two_axes(ss.consensus, name, kind)
  found = consensus(tree)
  mean = [np.arange(3.0, 9.0).reshape(3, 2)] * 2
  jax.tree.map(lambda x: np.testing.assert_array_equal(x, mean), found)
  assert jax.tree.map(jax.typeof, found) == jax.tree.map(jax.typeof, tree)


def test_a_part_that_needs_whole_arrays_refuses_an_explicit_axis():
  averager = ss.mean(wire=ss.wires.int8())

  def average(tree):
    return averager.apply(tree, averager.init(tree))[0]

  average, tree = over_two_axes(average, 'model', AxisType.Explicit)
  rule = "2@model.* split over the explicit mesh axis 'model', .*AxisType.Auto"
  with pytest.raises(ValueError, match=rule):
    average(tree)


def updated(tx):
  return lambda grads: tx.update(grads, tx.init(grads))


@pytest.mark.parametrize(
  'step',
  [
    lambda tree: ss.synchronize(jnp.bool(True), tree),
    updated(ss.selsync(0.3)),
    updated(ss.budgeted(ss.selsync(0.3, axis_name='data'), lssr=0.9)),
  ],
  ids=['synchronize', 'selsync', 'budgeted'],
)
def test_an_axis_that_is_not_mapped_is_named(step):
  mapped = jax.vmap(step, axis_name='data')
  with pytest.raises(NameError, match=r"^no axis 'workers' is mapped here; "):
    mapped(jnp.ones((4, 3)))
