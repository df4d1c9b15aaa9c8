"""Averages of one part of the parameters at a time."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax.sync import averagers, fragments, wires
from tests.support import rounds

SHAPES = {'w': (5, 7), 'b': (2,), 'scale': ()}


def some(count, workers, seed=0):
  """A move of every worker in each round, zero except in the first round."""
  rng = np.random.default_rng(seed)
  moves = {
    name: np.zeros((count, workers, *shape), np.float32)
    for name, shape in SHAPES.items()
  }
  for name, shape in SHAPES.items():
    moves[name][0] = rng.normal(size=(workers, *shape))
  return moves


START = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}


def flat(tree):
  """[rounds, workers, elements], one name after another."""
  return np.concatenate(
    [tree[n].reshape(*tree[n].shape[:2], -1) for n in SHAPES], axis=-1
  )


def test_in_turn_each_part_is_averaged_once_in_k_rounds(mapper):
  moves = some(4, 3)
  left, state = rounds.run(fragments.fragments(4), START, moves, mapper)
  left, own = flat(left), flat(moves)[0]
  mean = np.broadcast_to(own.mean(0), own.shape)
  done = np.zeros(own.shape[1], bool)
  for now in left:
    new = (now == now[0]).all(0)
    assert (new >= done).all()
    np.testing.assert_allclose(now[:, new], mean[:, new], atol=1e-6)
    np.testing.assert_array_equal(now[:, ~new], own[:, ~new])
    assert (new & ~done).sum() <= 9 + 1 + 1  # A quarter of 35, 2 and 1.
    done = new
  assert done.all()
  assert state.rounds[-1].tolist() == [4, 4, 4]


def test_a_single_fragment_is_the_averager_itself():
  moves = some(4, 2)
  moves['w'] += 0.1
  outer = averagers.outer(optax.sgd(0.7, momentum=0.9, nesterov=True))
  one, whole = (
    flat(rounds.run(a, START, moves)[0])
    for a in (fragments.fragments(1, averager=outer), outer)
  )
  np.testing.assert_array_equal(one, whole)


def test_each_fragment_takes_outer_steps_of_its_own():
  """Streaming DiLoCo in NumPy: the slices know nothing of each other."""
  k, workers = 3, 2
  moves = np.random.default_rng(0).normal(size=(9, workers, 12))
  averager = fragments.fragments(
    k, averager=averagers.outer(optax.sgd(0.7, momentum=0.9, nesterov=True))
  )
  left, _ = rounds.run(averager, jnp.zeros(12), moves.astype(np.float32))
  params = np.zeros((workers, 12))
  outers = [rounds.Outer(np.zeros(4)) for _ in range(k)]
  for t, move in enumerate(moves):
    params += move
    part = slice(4 * (t % k), 4 * (t % k) + 4)
    params[:, part] = outers[t % k](params[:, part])
    np.testing.assert_allclose(left[t], params, atol=1e-5)


def test_random_elements_are_drawn_alike_and_each_as_often(mapper):
  k, workers, count = 4, 3, 150
  move = np.random.default_rng(0).normal(size=(count, workers, 30))
  averager = fragments.fragments(k, 'random', seed=5)
  left, _ = rounds.run(averager, jnp.zeros(30), move.astype(np.float32), mapper)
  averaged = (left == left[:, :1]).all(1)
  # In one of 8 places out of 32, of which 2 are padding.
  assert averaged.sum(1).max() <= 8
  assert averaged.sum(1).min() >= 6
  often = averaged.mean(0)  # 0.25 on average, with a deviation of 0.035.
  assert often.min() > 0.12 and often.max() < 0.39
  np.testing.assert_allclose(
    left.mean(1), np.cumsum(move.mean(1), axis=0), atol=1e-4
  )


@pytest.mark.parametrize('wire', [wires.int8(), wires.bfloat16()], ids=str)
def test_fragments_travel_on_wires_with_errors_of_their_own(wire):
  moves = np.random.default_rng(0).normal(size=(12, 2, 600)).astype(np.float32)
  averager = fragments.fragments(3, averager=averagers.mean(wire=wire))
  left, state = rounds.run(averager, jnp.zeros(600), moves)
  assert state.averager.error[0].shape == (12, 2, 3, 200)
  exact, _ = rounds.run(fragments.fragments(3), jnp.zeros(600), moves)
  for t in range(12):
    part = slice(200 * (t % 3), 200 * (t % 3) + 200)
    assert (left[t, 0, part] == left[t, 1, part]).all()
  assert 0 < np.abs(left.mean(1) - exact.mean(1)).max() < 0.2
