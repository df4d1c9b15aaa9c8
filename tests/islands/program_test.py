"""A worker's program, cut at its collectives."""

import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.devices.slices import ONE, Slices
from selsync_jax.islands.program import cut, Form
from tests.support.on_board import Board, on_board

N = 4
ROWS = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)


def total(x):
  return lax.psum(x, ss.AXIS)


def nested(x):
  """Collectives in branches, in a compiled function, and of a result."""

  def largest(x):
    return lax.cond(jnp.max(total(x)) > 0, total, jnp.negative, x)

  mean = jax.jit(lambda x: (total(x) / N, total(2 * x)[0]))(x)
  other = lax.switch(
    jnp.int32(total(1.0) - 2), [jnp.sin, jnp.cos, largest, total], mean[0]
  )
  key = jax.random.fold_in(jax.random.key(0), lax.axis_index(ss.AXIS))
  chosen = lax.cond(mean[1] > 0, lambda: x, lambda: ROWS[0])
  noise = jax.random.normal(key, x.shape)
  return mean, other + noise, chosen, 1.0


@pytest.mark.parametrize('stacked', [False, True])
def test_it_computes_what_the_whole_program_does(stacked):
  rows = ROWS[:, None] if stacked else ROWS
  found = on_board(cut(nested, Form(ONE if stacked else None)), N, rows)
  expected = jax.vmap(nested, axis_name=ss.AXIS, out_axes=(0, 0, 0, None))(ROWS)
  for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    one = one[:, 0] if stacked else one
    np.testing.assert_allclose(
      one, np.broadcast_to(other, one.shape), rtol=1e-6
    )


def test_a_value_that_is_only_chosen_is_not_copied():
  small, large = jnp.zeros(3), jnp.ones(3)
  run = cut(lambda x, y: lax.cond(x[0] < y[0], lambda: x, lambda: y))
  peers = Board(1).peers(0)
  assert run(peers, small, large) is run(peers, large, small) is small


def _used(found, kernel, batch):
  jax.debug.inspect_array_sharding(batch, callback=found.append)
  return kernel + total(batch.T @ batch)


def _used_in_a_branch(found, kernel, batch):
  use = functools.partial(_used, found)
  return lax.cond(total(batch[0, 0]) > 0, use, lambda k, b: k, kernel, batch)


@pytest.mark.parametrize('use', [_used, _used_in_a_branch])
def test_the_devices_of_an_island_share_its_batch_and_what_it_keeps(use):
  devices, found = Slices(1, data=2, fsdp=2), []
  step = functools.partial(use, found)
  kernel = devices.compute(lambda: jnp.zeros((1, 64, 64)))
  batch = np.ones((1, 8, 64), np.float32)
  kernel = cut(step, Form(devices))(Board(1).peers(0), kernel, batch)
  (split,) = found
  assert split.shard_shape((8, 64)) == (2, 64)
  assert {part.data.shape for part in kernel.addressable_shards} == {
    (1, 32, 64)
  }


def test_it_is_traced_once_for_each_shape():
  traces = []

  def fn(x):
    traces.append(x.shape)
    return total(x)

  run = cut(fn)
  for size in (2, 3, 2, 3):
    on_board(run, 1, np.ones((1, size)))
  assert traces == [(2,), (3,)]


def in_loop(x):
  return lax.fori_loop(0, 3, lambda i, x: total(x), x)


def in_groups(x):
  return lax.psum(x, ss.AXIS, axis_index_groups=[[0, 1], [2, 3]])


def test_only_what_depends_on_the_number_of_islands_is_compiled_again():
  """Even if the number is hidden in a loop's constant, as here."""

  def fn(x):
    size = lax.axis_size(ss.AXIS)
    y = jax.nn.relu(jnp.tanh(x @ x))
    mean = lax.pmean(y, ss.AXIS)
    table = np.arange(3.0, dtype=np.float32) / size

    def add(carry, i):
      return carry + jnp.asarray(table)[i], None

    return lax.scan(add, mean, jnp.arange(3))[0]

  run, names = cut(fn), []

  def listen(event, seconds, **about):
    del seconds, about
    names.append(event)

  rows, compiled = np.ones((4, 3, 3), np.float32), {}
  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    for size in 4, 3, 4:
      names.clear()
      (found, *_), expected = on_board(run, size, rows[:size]), np.tanh(3.0)
      np.testing.assert_allclose(found, expected + 3 / size, rtol=1e-6)
      compiled[size] = sum('backend_compile' in name for name in names)
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
  assert compiled == {4: 0, 3: 1}


@pytest.mark.parametrize(
  'fn, line',
  [
    (in_loop, 'scan: holds a collective, which islands cannot cut'),
    (in_groups, 'psum: is not a collective among all islands'),
  ],
)
def test_what_cannot_be_cut_is_refused(fn, line):
  with pytest.raises(ValueError, match=f'^{line}$'):
    on_board(cut(fn), N, ROWS)


def test_sixty_four_islands_live_in_one_process():
  rows = np.arange(64, dtype=np.float32)
  found = on_board(cut(lambda x: total(x) - x), 64, rows)
  np.testing.assert_array_equal(found, rows.sum() - rows)
