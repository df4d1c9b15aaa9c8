"""Workers that find no device are refused before any work."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.config import ConfigError
from selsync_jax.devices import layout, mappers


def test_too_few_accelerators_are_reported_with_a_way_out():
  with pytest.raises(ConfigError, match=r'config.workers=17: .*mapper=auto'):
    mappers.Pmap(17).check()
  layout.choose('auto', 17).check()
  assert [layout.choose('auto', n).name for n in (16, 17)] == ['pmap', 'map']


def test_a_worker_of_several_devices_finds_them_all_or_is_refused():
  with pytest.raises(ConfigError, match=r'needs 8 devices .*fsdp$'):
    layout.Layout(3, data=2, fsdp=4).check()
  layout.Layout(2, data=2, fsdp=4).check()


@pytest.mark.parametrize(
  'sizes, rule',
  [
    ((2, 0, 1), 'data must be at least 1, got 0'),
    ((1, 2, 2), 'workers must be at least 2 with 4 devices each, got 1; '),
  ],
)
def test_a_layout_that_no_mesh_can_have_is_refused(sizes, rule):
  with pytest.raises(ValueError, match=rule):
    layout.Layout(*sizes)


def test_a_layout_in_a_custom_loop_says_what_is_missing():
  with pytest.raises(ConfigError, match='needs 64 devices in each '):
    _ = layout.Layout(8, fsdp=8).mesh


def test_a_layout_works_under_another_mesh_that_the_loop_has_set():
  two = layout.Layout(2, fsdp=2)
  step = two.map_workers(lambda worker: ss.consensus(worker * jnp.ones(3)))
  with jax.set_mesh(jax.make_mesh((4,), (ss.AXIS,))):
    mean = step(two.create(lambda worker: worker))
  np.testing.assert_array_equal(mean, np.full((2, 3), 0.5))


def pmapped(init):
  return jax.pmap(init, ss.AXIS)(jnp.arange(2))


@pytest.mark.parametrize(
  'create, map_workers',
  [
    (pmapped, mappers.Pmap(2).map_workers),
    (layout.Layout(2).create, layout.Layout(2).map_workers),
    (layout.Layout(2, 2, 2).create, layout.Layout(2, 2, 2).map_workers),
  ],
  ids=['pmap', '2x1x1', '2x2x2'],
)
def test_workers_start_equal_and_draw_dropout_masks_of_their_own(
  create, map_workers
):
  class Net(nnx.Module):
    def __init__(self, rngs):
      self.linear = nnx.Linear(64, 64, rngs=rngs)
      self.dropout = nnx.Dropout(0.5, rngs=rngs)

  def init(worker):
    assert worker.dtype == jnp.int32
    key = jax.random.fold_in(jax.random.key(1), worker)
    net = Net(nnx.Rngs(params=0, dropout=key))
    return nnx.state(net, nnx.Param), nnx.state(net, nnx.Not(nnx.Param))

  graph = nnx.graphdef(nnx.eval_shape(lambda: Net(nnx.Rngs(0))))

  def step(state):
    params, rest = ss.synchronize(jnp.bool(True), state)
    net = nnx.merge(graph, params, rest, copy=True)
    mask = net.dropout(jnp.ones(64)) > 0
    return (params, nnx.state(net, nnx.Not(nnx.Param))), mask

  state, step, masks = create(init), map_workers(step), set()
  for kernel in map(np.asarray, jax.tree.leaves(state[0])):
    np.testing.assert_array_equal(kernel[0], kernel[1])
  for _ in range(3):
    state, mask = step(state)
    masks |= {bytes(worker) for worker in np.asarray(mask)}
  assert len(masks) == 6
