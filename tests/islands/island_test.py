"""Training loops whose workers are separate programs."""

from concurrent import futures
import contextlib
import itertools

import jax
import jax.numpy as jnp
from jax.sharding import (
  AxisType,
  NamedSharding,
  PartitionSpec,
  SingleDeviceSharding,
)
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.config import RunError
from selsync_jax.islands import server
from selsync_jax.islands.board import Board
from tests.support.clipped import clipped_mean
from tests.support.island_loop import (
  local_step,
  loss,
  N,
  START,
  STEPS,
  TX,
  X,
  Y,
)


def on_island(island):
  """The loop of one worker."""
  params, opt_state = START, TX.init(START)
  for t in range(STEPS):
    x, y = X[t, island.index], Y[t, island.index]
    params, opt_state, grads = local_step(params, opt_state, x, y)
    params = island.after_step(params, grads)
  return island.leave(params)


def in_one_program(strategy):
  """The parameters of all workers, [N, ...]."""
  trigger, averager = strategy.trigger, strategy.averager
  tx = optax.chain(trigger, TX)

  def step(state, batch):
    params, opt_state, averaged = state
    grads = jax.grad(loss)(params, *batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    sync = ss.decision(opt_state)
    params, averaged = averager.step(sync, params, averaged)
    return (params, opt_state, averaged), None

  def train(x, y):
    state = START, tx.init(START), averager.init(START)
    (params, _, averaged), _ = jax.lax.scan(step, state, (x, y))
    return averager.land(params, averaged)

  rows = X.swapaxes(0, 1), Y.swapaxes(0, 1)
  return jax.jit(jax.vmap(train, axis_name=ss.AXIS))(*rows)


def run(join):
  """Returns each island's result of the loop, [N, ...]."""
  with futures.ThreadPoolExecutor(N) as pool:
    results = list(pool.map(lambda i: on_island(join(i)), range(N)))
  return jax.tree.map(lambda *x: np.stack(x), *results)


STRATEGIES = {
  'selsync': ss.Strategy(ss.selsync(0.3), ss.mean()),
  'late': ss.Strategy(
    ss.every(4), ss.delayed(ss.mean(), 3, keep=0.5, extrapolate=0.5)
  ),
  'late int8': ss.Strategy(
    ss.selsync(0.3), ss.delayed(ss.mean(wire=ss.wires.int8()), 2)
  ),
  'DiLoCo': ss.Strategy(ss.every(5), ss.outer(optax.sgd(0.7, 0.9, True))),
  'gossip': ss.Strategy(ss.every(2), ss.gossip('ring')),
  'two rounds, late': ss.Strategy(
    ss.every(4), ss.delayed(clipped_mean(0.1), 3)
  ),
}
BY_THE_LINK = ss.Strategy(
  ss.budgeted(ss.selsync(0.3), link_share=0.5), ss.delayed(ss.mean(), 2)
)


MORE = 'selsync', 'late', 'gossip', 'DiLoCo'


@pytest.mark.parametrize(
  'name',
  [
    *('late int8', 'two rounds, late'),
    *(pytest.param(n, marks=pytest.mark.slow) for n in MORE),
  ],
)
def test_islands_train_as_the_workers_of_one_program(name):
  strategy = STRATEGIES[name]
  board = Board(N)
  found = run(lambda i: ss.Island(board.peers(i), START, strategy))
  expected = in_one_program(strategy)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), found, expected
  )


@pytest.mark.slow
def test_they_do_so_over_a_network():
  strategy = STRATEGIES['late int8']
  with server.CoordinatorServer(N) as point:
    invitation = str(point.invitation)
    found = run(lambda i: ss.Island.join(invitation, f'{i}', START, strategy))
  board = Board(N)
  expected = run(lambda i: ss.Island(board.peers(i), START, strategy))
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_budget_learns_how_long_an_average_travels():
  board, islands = Board(N), {}

  def join(i):
    islands[i] = ss.Island(board.peers(i), START, BY_THE_LINK)
    return islands[i]

  run(join)
  (steps,) = {float(each._states[0].travel) for each in islands.values()}
  assert steps > 0


@pytest.mark.parametrize('kind', [AxisType.Auto, AxisType.Explicit])
def test_an_island_may_have_devices_and_a_mesh_of_its_own(kind):
  first, *others = jax.devices()[:3]
  mesh = jax.make_mesh((2,), 'x', devices=others, axis_types=(kind,))
  whole = SingleDeviceSharding(first)
  split = NamedSharding(mesh, PartitionSpec('x'))
  averager = ss.delayed(ss.outer(optax.sgd(0.7, 0.9, True)), 2)
  strategy = ss.Strategy(ss.selsync(0.3), averager)

  def train(join, place):
    params = jax.device_put(jnp.ones((8, 5)), place)
    island = join(params)
    for t in range(STEPS):
      grads = params - X[t, island.index]
      params = island.after_step(params - 0.1 * grads, grads)
      assert params.sharding.is_equivalent_to(place, params.ndim)
    return jax.device_get(island.leave(params))

  def on_a_mesh_or_not(i):
    def join(params):
      return ss.Island.join(invitation, f'{i}', params, strategy)

    with jax.set_mesh(mesh) if i else contextlib.nullcontext():
      return train(join, split if i else whole)

  def on_a_board(i):
    def join(params):
      return ss.Island(board.peers(i), params, strategy)

    return train(join, whole)

  board = Board(2)
  with (
    futures.ThreadPoolExecutor(2) as pool,
    server.CoordinatorServer(2) as point,
  ):
    invitation = str(point.invitation)
    found = list(pool.map(on_a_mesh_or_not, range(2)))
    expected = list(pool.map(on_a_board, range(2)))
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_others_hear_at_once_that_a_loop_has_failed():
  strategy = ss.Strategy(ss.every(1), ss.mean())

  def loop(point, i):
    invitation = str(point.invitation)
    with ss.Island.join(invitation, f'{i}', START, strategy) as island:
      for step in itertools.count():
        island.after_step(START)
        if i and step == 3:
          raise ZeroDivisionError

  with (
    server.CoordinatorServer(2) as point,
    futures.ThreadPoolExecutor(2) as pool,
  ):
    one, other = [pool.submit(loop, point, i) for i in range(2)]
    with pytest.raises(ZeroDivisionError):
      other.result(timeout=20)
    with pytest.raises(RunError, match='island 1 has failed'):
      one.result(timeout=20)


def test_an_island_needs_gradients_if_its_trigger_measures_them():
  def island(trigger):
    peers = Board(1).peers(0)
    return ss.Island(peers, START, ss.Strategy(trigger, ss.mean()))

  without = island(ss.any_of(ss.every(2), ss.fda(0.1)))
  for _ in range(3):
    jax.tree.map(
      np.testing.assert_array_equal, without.after_step(START), START
    )
  with pytest.raises(ValueError, match=r'^grads=None: trigger any_of\(selsync'):
    island(ss.any_of(ss.selsync(0.3), ss.every(2))).after_step(START)


def test_islands_that_start_unequal_are_refused():
  board = Board(2)

  def join(i):
    params = jax.tree.map(lambda x: x + i, START)
    return ss.Island(board.peers(i), params, STRATEGIES['selsync'])

  with futures.ThreadPoolExecutor(2) as pool:
    for i, island in enumerate([pool.submit(join, i) for i in range(2)]):
      line = f'island {1 - i} starts with other parameters than {i};'
      with pytest.raises(RunError, match=line):
        island.result()


def test_what_an_island_cannot_do_is_refused():
  strategy = ss.Strategy(ss.every(1), reducer=ss.all_reduce())
  with pytest.raises(ValueError, match=r'not all_reduce\(\) and local\(\)'):
    ss.Island(Board(1).peers(0), START, strategy)
