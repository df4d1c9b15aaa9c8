"""DES-LOC against its paper's algorithm, in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax import methods
from selsync_jax.devices import mappers
from selsync_jax.runs.ledger import Ledger, Totals
from selsync_jax.sync import traffic
from selsync_jax.training.start import resize
from selsync_jax.training.step import init_state, train_step
from tests.support.trajectory import quadratic, train

N, SIZE, STEPS = 3, 5, 15
RATE, B1, B2, EPS = 0.1, 0.9, 0.99, 1e-8
ADAM = optax.adam(RATE, B1, B2, EPS)
START = jnp.linspace(-1.0, 1.0, SIZE)
MESSAGE = 2 * (N - 1) / N * 4 * SIZE  # Bytes of an all-reduce in a ring.


def create(period=1, first=3, second=6, **more):
  fields = dict(period=period, first=first, second=second)
  context = methods.Context(8, 0)
  return methods.create_strategy('des_loc', context, **fields, **more)


def workers():
  """The curves and goals of the workers' losses."""
  rng = np.random.default_rng(0)
  curve = rng.uniform(0.1, 2.0, size=(N, SIZE))
  return curve.astype('f4'), rng.normal(size=(N, SIZE)).astype('f4')


def des_loc(period, first, second):
  """The parameters after each step: Adam, with averages at three periods."""
  curve, goal = workers()
  x = np.tile(np.float64(START), (N, 1))
  u, v = np.zeros((2, N, SIZE))
  for t in range(1, STEPS + 1):
    g = curve * (x - goal)
    u, v = B1 * u + (1 - B1) * g, B2 * v + (1 - B2) * g**2
    x = x - RATE * u / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + EPS)
    due = (k * period for k in (1, first, second))
    x, u, v = (
      np.tile(s.mean(0), (N, 1)) if t % k == 0 else s
      for s, k in zip((x, u, v), due, strict=True)
    )
    yield x


@pytest.mark.parametrize(
  'fields, sent',
  [
    ((2, 3, 6), 7 + 2 + 1),
    ((1, 2, 2), 15 + 2 * 7),  # Both moments travel in one message.
    ((3, 2, 1), 5 + 2 + 5),
    ((2, 1, 1), 3 * 7),  # Local Adam.
  ],
)
def test_parameters_and_moments_are_averaged_at_their_own_periods(fields, sent):
  """Every message that a run has sent is counted, and no other."""
  strategy = create(*fields)
  found, metrics = train(strategy, ADAM, START, workers(), STEPS)
  np.testing.assert_allclose(found, [*des_loc(*fields)], atol=1e-5)
  shared = {'params': START, 'model_state': {}}
  sends = strategy.sends(shared, N, ADAM.init(START))
  ledger = Ledger(Totals(), traffic.traffic(sends, START, N), None, None, 0)
  for t in range(STEPS):
    ledger.count({name: values[t] for name, values in metrics.items()})
  assert ledger.totals.sent == pytest.approx(sent * MESSAGE)


def test_moments_are_planned_with_their_share_of_the_averages():
  shared = {'params': START, 'model_state': {}}
  sends = create().sends(shared, N, ADAM.init(START))
  found = traffic.sent(sends, 'sync', N)
  assert found == pytest.approx((1 + 1 / 3 + 1 / 6) * MESSAGE)


@pytest.mark.parametrize('wire', ['float32', 'bfloat16'])
def test_another_number_of_workers_continues_the_count_of_averages(wire):
  strategy = create(wire=wire)
  start = init_state(START, {}, strategy, ADAM)
  step = train_step(quadratic, strategy, ADAM, seed=0)
  state = mappers.Vmap(N).stack(start)
  rows = workers()
  for _ in range(4):  # The fourth is the first of another three.
    state, _ = mappers.Vmap(N).map_workers(step)(state, rows)
  fresh = mappers.Vmap(2).stack(start)
  state = resize(state, fresh, strategy, range(2), 'clone', 4)
  rows = jax.tree.map(lambda x: x[:2], rows)
  equal = []
  for _ in range(2):
    state, _ = mappers.Vmap(2).map_workers(step)(state, rows)
    adam = state.opt_state[0]
    equal.append([bool((m[0] == m[1]).all()) for m in (adam.mu, adam.nu)])
  assert equal == [[False, False], [True, True]]
