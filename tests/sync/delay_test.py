"""Averages that arrive late, against references in NumPy."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from tests.support import rounds
from tests.support.marks import slow

N, SIZE, STEPS = 4, 600, 24
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)
RNG = np.random.default_rng(0)
MOVES = RNG.normal(size=(STEPS, N, SIZE)).astype(np.float32)
SYNC = RNG.random(STEPS) < 0.4
START = np.linspace(-1, 1, SIZE).astype(np.float32)


def trained(result, k, *, keep=1.0, extrapolate=0.0, mix=0.0, piece=None):
  """The workers' parameters after each step.

  `result(snapshots)` computes an average from the snapshots, and `piece` is the
  slice that the next average covers.
  """
  x = np.tile(START, (N, 1)).astype(np.float64)
  before, left, asked, age, after = START, 0, False, 0, []
  part, snapshot, span = slice(None), x, 1
  for move, sync in zip(MOVES, SYNC, strict=True):
    x, age, asked = x + move, age + 1, asked | sync
    if left:
      left -= 1
      if not left:
        m, now = result(snapshot), x[:, part]
        moved = m + keep * (now - snapshot)
        if extrapolate:
          moved = moved + extrapolate * k / span * (m - before)
        x[:, part] = mix * now + (1 - mix) * moved
        before = m
    if asked and not left:
      part = piece() if piece else slice(None)
      snapshot, span, age, asked, left = x[:, part].copy(), age, 0, False, k
    after.append(x)
  return np.array(after)


def mean(snapshots):
  return snapshots.mean(0)


class Fragments:
  """Averages a third at a time, with an outer step each."""

  def __init__(self):
    self.outers = [rounds.Outer(part) for part in np.split(START, 3)]
    self.taken = self.finished = 0

  def piece(self):
    index, self.taken = self.taken % 3, self.taken + 1
    return slice(200 * index, 200 * index + 200)

  def __call__(self, snapshots):
    index, self.finished = self.finished % 3, self.finished + 1
    return self.outers[index](snapshots)


def rounded(values):
  """Values in int8, with a scale for each 256, along the last axis."""
  padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -SIZE % 256)])
  blocks = padded.reshape(*values.shape[:-1], -1, 256)
  scale = np.abs(blocks).max(-1, keepdims=True) / 127
  codes = np.round(blocks / np.where(scale > 0, scale, 1))
  return (codes * scale).reshape(padded.shape)[..., : values.shape[-1]]


class Int8:
  """A mean of changes in int8: workers round, then the owner of each share."""

  def __init__(self):
    self.reference, self.error = START, np.zeros((N, SIZE), np.float32)

  def __call__(self, snapshots):
    sent = snapshots.astype(np.float32) - self.reference + self.error
    given = rounded(sent)
    exact = given.mean(0)
    change = rounded(exact)
    self.error = sent - given
    for worker in range(N):  # Worker i adds up the i-th block of 256.
      share = slice(256 * worker, 256 * worker + 256)
      self.error[worker, share] += N * (exact - change)[share]
    self.reference = self.reference + change
    return self.reference


PAPER = {'keep': 0.0, 'mix': 0.5}
HALF = {'keep': 0.5, 'extrapolate': 0.5}
CASES = {
  'plain': (ss.mean, lambda: mean, {}),
  'half and half': (ss.mean, lambda: mean, HALF),
  'mixed': (
    ss.mean,
    lambda: mean,
    {'keep': 0.25, 'extrapolate': 1.0, 'mix': 0.3},
  ),
  'outer, mixed': (
    lambda: ss.outer(NESTEROV),
    lambda: rounds.Outer(START),
    PAPER,
  ),
  'outer, half': (
    lambda: ss.outer(NESTEROV),
    lambda: rounds.Outer(START),
    HALF,
  ),
  'int8': (lambda: ss.mean(wire=ss.wires.int8()), Int8, {}),
  'int8, half': (lambda: ss.mean(wire=ss.wires.int8()), Int8, HALF),
  'fragments': (
    lambda: ss.fragments(3, averager=ss.outer(NESTEROV)),
    Fragments,
    PAPER,
  ),
}


@pytest.mark.parametrize('k', [1, slow(2), 5])
@pytest.mark.parametrize('case', CASES)
def test_a_delayed_average_equals_a_reference(case, k):
  """Votes come in bursts, so some wait for a mean in flight."""
  create, result, fields = CASES[case]
  result = result()
  expected = trained(result, k, piece=getattr(result, 'piece', None), **fields)
  averager = ss.delayed(create(), k, **fields)
  left, _ = rounds.run(averager, jnp.asarray(START), MOVES, sync=SYNC)
  close = np.isclose(left, expected, atol=2e-5, rtol=2e-5)
  # A value nearly between two int8 values may be rounded to either of them, and
  # then its block may have another scale from there on.
  assert close.mean() >= (0.7 if 'int8' in case else 1)


def test_votes_while_a_mean_is_in_flight_become_one_average():
  sync = np.zeros(STEPS, bool)
  sync[[2, 3, 4, 9]] = True  # The mean of step 2 is applied at step 6.
  _, state = rounds.run(
    ss.delayed(ss.mean(), 4), jnp.asarray(START), MOVES, sync=sync
  )
  left = state.left[:, 0].tolist()
  assert left[2:16] == [4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1, 0, 0]
  assert state.asked[:, 0].nonzero()[0].tolist() == [3, 4, 5, 9]


@pytest.mark.parametrize(
  'averager', [ss.mean(wire=ss.wires.bfloat16()), ss.groups(2), ss.gossip()]
)
def test_every_mapper_computes_the_same(averager):
  """Even if a message is not the mean of all workers, or has other types."""
  late = ss.delayed(averager, 2, keep=0.5)
  pmap, *others = (
    rounds.run(late, jnp.asarray(START), MOVES, mapper, SYNC)[0]
    for mapper in ('pmap', 'vmap', 'map')
  )
  for other in others:
    np.testing.assert_allclose(other, pmap, atol=1e-6)
  assert np.ptp(pmap[-1], axis=0).max() > 0.1


def test_eager_outer_steps_equal_a_reference():
  """Kale et al., Algorithm 2: the other workers' changes are a round old."""
  x = np.tile(START, (N, 1)).astype(np.float64)
  consensus, momentum = x.copy(), 0.0
  old, expected = np.zeros((N, SIZE)), []
  for move, sync in zip(MOVES, SYNC, strict=True):
    x = x + move
    if sync:
      new = consensus - x
      others = (old.sum(0) - old) / N
      gradient = new / N + others
      momentum = gradient + 0.9 * momentum
      consensus = consensus - 0.7 * (gradient + 0.9 * momentum)
      x, old = consensus, new
    expected.append(x)
  averager = ss.eager_outer(NESTEROV)
  left, _ = rounds.run(averager, jnp.asarray(START), MOVES, sync=SYNC)
  np.testing.assert_allclose(left, expected, atol=2e-5)


def test_an_eager_change_is_completed_by_the_number_that_began_it():
  """One of four workers is left; the mean of the last changes is d."""
  averager = ss.eager_outer(optax.sgd(1.0))
  start = jnp.zeros((4, SIZE))
  step = jax.vmap(averager.apply, axis_name=ss.AXIS)
  left, state = step(start + 4, jax.vmap(averager.init)(start))
  np.testing.assert_allclose(left, 1)  # A quarter of the change.
  state = averager.resize(state, jax.vmap(averager.init)(start[:1]), (0,), 1)
  left, _ = step(left[:1], state)
  np.testing.assert_allclose(left, 4)  # The rest, and no new change.


def on_a_quadratic(averager, kappa, workers, rounds=60):
  """The distance from the common optimum, relative to the start.

  In a round, each worker moves by a share `kappa` toward its own optimum.
  """
  rng = np.random.default_rng(1)
  optima = rng.normal(size=(workers, 512)).astype(np.float32)
  start = jnp.full((workers, 512), 3.0)
  average = jax.vmap(averager.apply, axis_name=ss.AXIS)

  def round_of(_, carry):
    x, state = carry
    return average(x + kappa * (optima - x), state)

  carry = start, jax.vmap(averager.init)(start)
  end, _ = jax.jit(lambda c: lax.fori_loop(0, rounds, round_of, c))(carry)
  far = [np.linalg.norm((x - optima).mean(0)) for x in (start, end)]
  return far[1] / far[0]


@pytest.mark.parametrize('kappa', [0.5, 0.95])
@pytest.mark.parametrize('workers', [2, 8])
@pytest.mark.parametrize('rate, momentum', [(0.5, 0.0), (0.7, 0.5)])
def test_eager_outer_steps_are_stable_where_the_docstring_says(
  rate, momentum, workers, kappa
):
  stable = rate * kappa * (1 - 1 / workers) < 1 - momentum
  averager = ss.eager_outer(optax.sgd(rate, momentum))
  far = on_a_quadratic(averager, kappa, workers)
  assert far < 0.5 if stable else far > 2


def test_eager_outer_steps_are_not_stable_with_the_momentum_of_diloco():
  assert on_a_quadratic(ss.eager_outer(NESTEROV), 0.95, 8) > 2


@pytest.mark.parametrize(
  'wire', [ss.wires.int8(), ss.wires.int2(), ss.sparse(0.1)]
)
def test_eager_outer_steps_converge_on_every_wire(wire):
  averager = ss.eager_outer(optax.sgd(0.5), wire=wire)
  assert on_a_quadratic(averager, 0.3, 4) < 0.15


def test_eager_outer_steps_leave_variances_positive_and_counters_alone():
  """Even if the true variance is far below the first one."""
  averager = ss.eager_outer(optax.sgd(1.0))
  tree = {
    'params': jnp.ones((8, 3)),
    'var': jnp.ones((8, 3)),
    'count': jnp.arange(8),
  }
  state = jax.vmap(averager.init)(tree)
  for count in range(1, 7):
    moved = {
      'params': tree['params'],
      'var': tree['var'] + 0.9 * (0.01 - tree['var']),
      'count': tree['count'] + 1,
    }
    step = jax.vmap(averager.apply, axis_name=ss.AXIS)
    tree, state = step(moved, state)
    assert (tree['var'] >= 0).all()
    assert tree['count'].tolist() == [count + i for i in range(8)]


def test_variances_stay_positive_and_counters_are_the_workers_own():
  same = jnp.full(3, 0.05)
  start = {'params': same, 'var': same, 'count': jnp.int32(0)}
  fall = np.full((2, N, 3), -0.024, np.float32)
  count = np.arange(2 * N, dtype=np.int32).reshape(2, N)
  left, _ = rounds.run(
    ss.delayed(ss.mean(), 1, keep=0.5, extrapolate=1.0),
    start,
    {'params': fall, 'var': fall, 'count': count},
  )
  falls = 0.026 - 0.024 / 2 - 0.024
  np.testing.assert_allclose(left['params'][-1], falls, atol=1e-7)
  assert (left['var'][-1] == 0).all()  # Although all see it fall.
  assert left['count'][-1].tolist() == count.sum(0).tolist()


@pytest.mark.parametrize('step, reached', [(2, True), (3, False)])
def test_nan_reaches_the_others_with_the_snapshot_that_has_it(step, reached):
  """A worker whose values broke after its snapshot does not spread NaN."""
  moves = np.zeros((6, N, 3), np.float32)
  moves[step, 1] = np.nan
  left, _ = rounds.run(
    ss.delayed(ss.mean(), 2, keep=0.5, extrapolate=0.5),
    jnp.ones(3),
    moves,
    sync=np.arange(6) == 2,
  )
  others = np.isnan(left[:, [0, 2, 3]])
  assert not others[:4].any()
  assert others[4:].all() if reached else not others.any()


def test_an_average_in_flight_is_applied_after_the_last_step():
  averager = ss.delayed(ss.mean(), 3)

  def worker(x):
    state = averager.init(x)
    x, state = averager.step(jnp.bool(True), x, state)
    landed = averager.land(x, state)
    x, state = averager.step(jnp.bool(False), x, state)
    return landed, averager.land(*averager.step(jnp.bool(False), x, state))

  x = jnp.arange(4.0)[:, None]
  for landed in jax.vmap(worker, axis_name=ss.AXIS)(x):
    assert (np.asarray(landed) == 1.5).all()
  late = ss.delayed(ss.mean(), 3)
  state = jax.vmap(late.init)(x)
  same = jax.vmap(late.land, axis_name=ss.AXIS)(x, state)
  np.testing.assert_array_equal(same, x)


def test_an_average_that_lands_early_is_extrapolated_by_its_steps_in_flight():
  """Equal workers therefore stay where they are."""
  averager = ss.delayed(ss.mean(), 3, keep=0.5, extrapolate=0.5)
  moves, sync = np.ones((24, N, 1), np.float32), np.arange(1, 25) % 10 == 0
  left, states = rounds.run(averager, jnp.zeros(1), moves, sync=sync)
  for t in (19, 20, 21, 22, 23):  # From the snapshot at 20 steps on.
    x, state = jax.tree.map(lambda x, t=t: x[t], (left, states))
    landed = jax.vmap(averager.land, axis_name=ss.AXIS)(x, state)
    np.testing.assert_allclose(landed, t + 1, rtol=1e-6)


def test_new_workers_keep_the_last_mean_and_forget_averages_in_flight():
  averager = ss.delayed(ss.mean(), 3, keep=0.5, extrapolate=0.5)
  _, states = rounds.run(averager, jnp.asarray(START), MOVES, sync=SYNC)
  saved = jax.tree.map(lambda x: x[-1], states)
  fresh = jax.tree.map(lambda x: np.zeros_like(x)[:2], saved)
  new = averager.resize(saved, fresh, range(2), STEPS)
  assert saved.left.all() and not new.left.any()
  np.testing.assert_array_equal(new.before, saved.before[:2])
  # The last snapshot that counts is the previous one.
  assert new.age.tolist() == (saved.age + saved.span)[:2].tolist()
