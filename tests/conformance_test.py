"""Requirements for every method of synchronization, in one table."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax.configs import base
from selsync_jax.devices import layout, mappers
from selsync_jax.islands.behind import Behind
from selsync_jax.islands.program import cut
from selsync_jax.methods import METHODS
from selsync_jax.training import start
from selsync_jax.training.step import init_state, train_step
from tests.support import compositions, sent
from tests.support.blocks import rows_of, shard_map
from tests.support.lines import fits
from tests.support.marks import slow
from tests.support.on_board import on_board

N = 4
VARIANTS = compositions.PRESETS | compositions.GRID | compositions.REST
OPTIMIZERS = {
  'sgd': optax.sgd(0.1, momentum=0.5),
  'clip, adamw': optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.02)),
}
MAPPERS = ('pmap', 'vmap')
STEPS = 60
REASONS = (
  'would decide nothing',
  'never communicate',
  'lets parameters differ',
  'measures from common parameters',
  'comes before the local update',
)


# The methods that islands run, without the slow ones.
ON_ISLANDS = {'selsync', 'gossip', 'micro', 'edit, late'}


def strategy_of(variant):
  return compositions.create(*VARIANTS[variant])


@pytest.fixture(
  scope='module',  # Groups the tests of a method, which share its runs.
  params=[
    slow(name) if name in compositions.SLOW else name for name in VARIANTS
  ],
)
def variant(request):
  return request.param


def loss(params, model_state, batch, key):
  del key
  x, y = batch
  error = jnp.mean((jnp.tanh(x @ params['w']) @ params['v'] - y) ** 2)
  # A running mean of the inputs stands for batch statistics.
  stats = {'mean': 0.9 * model_state['mean'] + 0.1 * jnp.mean(x, axis=0)}
  return error, ({'loss': error}, stats)


class Toy:
  """A two-layer regression on N workers with equal data."""

  def __init__(self, variant, optimizer='sgd', workers=N):
    rng = np.random.default_rng(0)
    params = {
      'w': jnp.asarray(rng.normal(size=(5, 7)), jnp.float32),
      'v': jnp.zeros(7),
    }
    self.x = rng.normal(size=(64, workers, 16, 5)).astype(np.float32)
    self.y = np.tanh(self.x @ rng.normal(size=5)).astype(np.float32)
    self.strategy = strategy_of(variant)
    self.optimizer = OPTIMIZERS[optimizer]
    if optimizer == 'sgd':
      self.optimizer = compositions.OPTIMIZERS.get(variant, self.optimizer)
    self.traces = 0

    def counted(*args):
      self.traces += 1
      return loss(*args)

    self.start = init_state(
      params, {'mean': jnp.zeros(5)}, self.strategy, self.optimizer
    )
    self.worker = train_step(counted, self.strategy, self.optimizer, seed=0)

  def train(self, step, state, steps, start=0):
    """State and metrics on the host after each step, worker-stacked."""
    trajectory = []
    for i in range(start, start + steps):
      state, metrics = step(state, (self.x[i], self.y[i]))
      trajectory.append(jax.device_get((state, metrics)))
    return trajectory


@functools.cache
def recorded(variant, optimizer, mapper):
  """One trajectory, shared by all tests that use it, and its trace count."""
  toy = Toy(variant, optimizer)
  chosen = layout.choose(mapper, N)
  step = chosen.map_workers(toy.worker)
  state = chosen.replicate(lambda: toy.start)
  return types.SimpleNamespace(
    toy=toy,
    step=step,
    before=jax.tree.map(lambda x: (x.shape, x.dtype), state),
    steps=toy.train(step, state, STEPS),
  )


def synchronized(variant, mapper):
  """The states after the steps that synchronized."""
  steps = recorded(variant, 'sgd', mapper).steps
  return [state for state, metrics in steps if metrics['synced'][0]]


@pytest.mark.parametrize(
  'optimizer, mapper',
  [('sgd', 'pmap'), ('sgd', 'vmap'), slow('clip, adamw', 'vmap')],
)
def test_it_converges_alone_and_in_a_chain_with_clipping_and_adamw(
  variant, optimizer, mapper
):
  steps = recorded(variant, optimizer, mapper).steps
  losses = [metrics['loss'].mean() for _, metrics in steps]
  assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:5])


def test_pmap_and_vmap_synchronize_alike_and_agree_to_rounding(variant):
  pmap, vmap = (recorded(variant, 'sgd', m).steps[:20] for m in MAPPERS)
  for (_, one), (_, other) in zip(pmap, vmap, strict=True):
    np.testing.assert_array_equal(one['synced'], other['synced'])
  # A sum that differs in its last bit may be rounded to another 8-bit value, or
  # reach a threshold of selection that the other sum does not reach.
  atol = 2e-2 if errors(pmap[0][0]) else 1e-5
  jax.tree.map(
    lambda one, other: np.testing.assert_allclose(one, other, atol=atol),
    pmap[-1][0].shared,
    vmap[-1][0].shared,
  )


@pytest.mark.parametrize(
  'variant',
  [name if name in ON_ISLANDS else slow(name) for name in VARIANTS],
  scope='module',
)
def test_islands_synchronize_as_the_workers_of_one_program_do(variant):
  toy = Toy(variant)
  run, averager = cut(toy.worker), toy.strategy.averager

  def island(peers, x, y):
    if averager.steps_late:
      peers.late = Behind(peers, averager)
    state, trajectory = toy.start, []
    for batch in zip(x, y, strict=True):
      state, metrics = run(peers, state, batch)
      if averager.steps_late and metrics['synced']:
        peers.late.depart(state.averager_state)
      trajectory.append(metrics['synced'])
    return state.shared, jnp.stack(trajectory)

  batches = (rows[:20].swapaxes(0, 1) for rows in (toy.x, toy.y))
  shared, synced = on_board(island, N, *batches)
  expected = recorded(variant, 'sgd', 'vmap').steps[:20]
  for step, (_, metrics) in enumerate(expected):
    np.testing.assert_array_equal(metrics['synced'], synced[:, step])
  atol = 2e-2 if errors(expected[0][0]) else 1e-5
  jax.tree.map(
    lambda one, other: np.testing.assert_allclose(one, other, atol=atol),
    expected[-1][0].shared,
    shared,
  )


@pytest.mark.slow
def test_shard_map_that_checks_types_gives_the_bits_of_pmap(variant):
  toy = Toy(variant)
  step = shard_map(rows_of(toy.worker))
  state = mappers.Pmap(N).replicate(lambda: toy.start)
  checked = toy.train(step, state, 20)
  pmap = recorded(variant, 'sgd', 'pmap').steps[:20]
  jax.tree.map(np.testing.assert_array_equal, pmap, checked)


def test_steps_can_be_scanned_under_shard_map_that_checks_types(variant):
  toy = Toy(variant)
  steps = functools.partial(jax.lax.scan, toy.worker)
  scanned = shard_map(rows_of(steps))
  state = mappers.Vmap(N).stack(toy.start)
  batches = toy.x.swapaxes(0, 1), toy.y.swapaxes(0, 1)
  after, _ = jax.eval_shape(scanned, state, batches)
  assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)


def test_it_is_traced_once_and_keeps_structure_shapes_and_dtypes(
  variant, mapper
):
  run = recorded(variant, 'sgd', mapper)
  after, _ = run.steps[-1]
  assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == run.before
  assert run.toy.traces == 1


def test_workers_hold_one_flag_between_them(variant, mapper):
  for _, metrics in recorded(variant, 'sgd', mapper).steps:
    assert len(set(metrics['synced'].tolist())) == 1


def test_workers_synchronize_and_only_some_steps_do_unless_every_one_does(
  variant, mapper
):
  steps = recorded(variant, 'sgd', mapper).steps
  flags = [bool(metrics['synced'][0]) for _, metrics in steps]
  assert any(flags)
  assert all(flags) == (strategy_of(variant).trigger.traits.period == 1)


def test_shared_state_is_bit_identical_after_a_synchronization(variant, mapper):
  strategy = strategy_of(variant)
  states = synchronized(variant, mapper)
  assert states
  if strategy.keeps_replicas_equal:
    for state in states:
      averaged = strategy.averaged(state.shared)
      equal = averaged if strategy.averager.agrees else state.params
      for leaf in jax.tree.leaves(equal):
        assert (leaf == leaf[0]).all()


def test_workers_differ_after_an_average_that_they_do_not_share(
  variant, mapper
):
  if not strategy_of(variant).keeps_replicas_equal:
    states = synchronized(variant, mapper)
    assert any((s.params['w'] != s.params['w'][0]).any() for s in states)


def test_every_method_marked_slow_exists():
  assert VARIANTS.keys() >= compositions.SLOW


def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(variant, mapper):
  """The state goes through the host, like in a checkpoint."""
  run = recorded(variant, 'sgd', mapper)
  half = layout.choose(mapper, N).place(run.steps[9][0])
  again = run.toy.train(run.step, half, 10, start=10)
  jax.tree.map(np.testing.assert_array_equal, again, run.steps[10:20])


@pytest.mark.slow
@pytest.mark.parametrize('workers', [2, 8])
def test_another_number_of_workers_can_continue(variant, workers):
  saved, _ = recorded(variant, 'sgd', 'vmap').steps[19]
  toy, mapper = Toy(variant, workers=workers), mappers.Vmap(workers)
  state = start.resize(
    saved, mapper.stack(toy.start), toy.strategy, range(workers), 'mean', 20
  )
  for old, new in zip(errors(saved), errors(state), strict=True):
    np.testing.assert_allclose(old.mean(0), new.mean(0), atol=1e-6)
  step = mapper.map_workers(toy.worker)
  steps = toy.train(step, mapper.place(state), 20, start=20)
  losses = [metrics['loss'].mean() for _, metrics in steps]
  before = recorded(variant, 'sgd', 'vmap').steps
  first = np.mean([metrics['loss'].mean() for _, metrics in before[:5]])
  assert np.mean(losses[-10:]) < first


def errors(state):
  """The error memories in a state."""
  return [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    if any(getattr(key, 'name', None) == 'error' for key in path)
  ]


def test_in_a_chain_it_accepts_extra_arguments(variant):
  toy = Toy(variant)
  trigger, reducer = toy.strategy.trigger, toy.strategy.reducer
  tx = optax.chain(trigger, toy.optimizer)

  def update(grads):
    updates, state = tx.update(grads, tx.init(grads), grads, loss=1.0)
    sync = state[0].sync
    reduced, _ = reducer.update(
      updates, reducer.init(grads), grads, sync=sync, loss=1.0
    )
    return reduced, sync

  mapper = mappers.Vmap(N)
  grads = mapper.stack(toy.start.params)
  reduced, sync = mapper.map_workers(update)(grads)
  assert sync.shape == (N,)
  assert jax.tree.structure(reduced) == jax.tree.structure(grads)


def test_two_thirds_of_all_pairs_can_be_right():
  assert len(compositions.GRID) > 2 * len(compositions.REFUSED)


@pytest.mark.parametrize('pair', compositions.REFUSED)
def test_a_pair_that_cannot_be_right_is_refused_with_the_reason(pair):
  line = compositions.REFUSED[pair]
  assert any(fits(f'...{reason}...', line) for reason in REASONS)


def test_a_step_sends_what_its_parts_send(variant):
  toy = Toy(variant)
  batch = toy.x[0, 0], toy.y[0, 0]
  assert not sent.difference(toy.worker, toy.strategy, toy.start, batch, N)


def test_batch_statistics_are_estimated_where_averages_would_spoil_them():
  strategies = {m: compositions.create(m, {}) for m in METHODS}
  spoil = {m for m, each in strategies.items() if each.averager.withholds}
  assert spoil == {
    m for m in METHODS if base.get_config(m).sync.model_state == 'recompute'
  }
