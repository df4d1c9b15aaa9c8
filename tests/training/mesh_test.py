"""Workers of several devices: one device's arithmetic, and the messages."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax.devices.layout import Layout
from selsync_jax.devices.mappers import abstract, Pmap
from selsync_jax.training.step import init_state
from tests.support import compositions, layouts, shapes
from tests.support.marks import slow_but
from tests.support.workloads import WORKLOADS

METHODS = slow_but(('selsync',), layouts.METHODS)
# Groups the tests of a method, which share its runs.
by_method = pytest.mark.parametrize('method', METHODS, scope='module')
SPLIT = Layout(2, 2, 2)
SHAPES = [Layout(4, 2, 1), Layout(4, 1, 2), Layout(2, 1, 4)]


def check(method, layout):
  pmap = layouts.train(method, Pmap(layout.workers))
  mesh = layouts.train(method, layout)
  assert mesh.synced == pmap.synced
  # A value nearly between two int8 values may be rounded to either of them.
  share = 0.99 if 'int8' in method else 1.0
  assert layouts.difference(pmap, mesh, share) < 1e-4
  assert layouts.difference(pmap, mesh) < 5e-3


@by_method
def test_a_worker_of_four_devices_is_a_worker_of_one(method):
  check(method, SPLIT)


@pytest.mark.slow
@pytest.mark.parametrize('layout', SHAPES, ids=str)
@pytest.mark.parametrize(
  'method', ['selsync', 'power_sgd', 'int8', 'fda, sketch']
)
def test_any_layout_trains_like_one_device(method, layout):
  check(method, layout)


@pytest.mark.parametrize('method', ['selsync'])
def test_with_one_device_per_worker_the_bits_match_pmap(method):
  pmap = layouts.train(method, Pmap(2))
  mesh = layouts.train(method, Layout(2))
  jax.tree.map(np.testing.assert_array_equal, pmap.state, mesh.state)


@by_method
def test_every_device_sends_other_workers_its_part_and_no_more(method):
  """The issuer of each message sends at most as much as the method names."""
  run = layouts.train(method, SPLIT)
  strategy = compositions.create(*layouts.METHODS[method])
  state = jax.tree.map(lambda x: x[0], run.state)
  named = strategy.sends(state.shared, SPLIT.workers, state.opt_state)
  sent = layouts.crossings(method, SPLIT)
  elements = sum(
    x.size for x in jax.tree.leaves(strategy.averaged(state.shared))
  )
  part = math.ceil(elements / SPLIT.devices_per_worker)
  if strategy.averager.averages:
    # The vote: a flag and its count, or the trigger's own message, a sketch.
    vote = max((c.nbytes / 4 for c in named if c.at == 'step'), default=0)
    outside = [m for m in sent if not m.conditional]
    assert all(m.elements <= max(vote, 2) for m in outside)
    inside = [m for m in sent if m.conditional]
    assert all(m.elements <= part for m in inside)
    if method not in ('groups, random', 'diloco, sparta'):  # More branches.
      branches = [c for c in named if c.at == 'sync' or c.rate < 1]
      assert len(inside) <= len(branches)
  assert all(m.elements <= part for m in sent)
  assert sent or not named


@pytest.mark.parametrize('layout', [Layout(2), SPLIT], ids=str)
def test_the_step_is_compiled_once_and_its_state_stays_where_it_is(layout):
  step, state = layouts.begin('selsync', layout)
  for batch in itertools.islice(layouts.batches(layout.workers), 3):
    state, _ = step(state, batch)
  assert step.__wrapped__._cache_size() == 1
  for leaf in jax.tree.leaves(state):
    assert leaf.sharding.is_equivalent_to(
      layout.sharding(leaf.shape), leaf.ndim
    )


def test_four_devices_hold_a_quarter_of_the_decoders_state_each():
  _, state, _ = shapes.decoder(WORKLOADS['decoder 10M'])
  alone, quarter = (
    shapes.held(Layout(2, 1, fsdp).abstract(state)) for fsdp in (1, 4)
  )
  assert quarter <= 0.26 * alone


REMEMBER = {
  'selsync, int8': ('selsync', {'delta': 0.1, 'wire': 'int8'}),
  **{name: (name, {}) for name in ('fda', 'int8', 'top_k', 'micro', 'exdyna')},
}


@pytest.mark.parametrize('method', REMEMBER)
def test_states_of_parts_are_split_like_the_parameters(method):
  """Even if the number of devices does not divide the part's size."""
  params = {'kernel': jnp.zeros((64, 64)), 'bias': jnp.zeros(3)}
  strategy = compositions.create(*REMEMBER[method])
  state = init_state(params, {}, strategy, optax.sgd(0.1))
  alone, quarter = (
    shapes.held(Layout(2, 1, fsdp).abstract(state)) for fsdp in (1, 4)
  )
  assert quarter <= 0.4 * alone  # ExDyna's blocks are whole on each device.


def test_eight_workers_are_restored_as_two_with_an_eighth_on_each_device():
  _, state, _ = shapes.decoder(WORKLOADS['decoder 10M'])
  every = abstract(state, 8)
  parts = SPLIT.abstract_saved(state, 8)
  whole = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(every))
  assert shapes.held(parts) <= 0.13 * whole
