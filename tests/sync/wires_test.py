"""Wires of averages: permitted effects of rounding."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.devices import mappers
from selsync_jax.sync import averagers, sparse_wire, wires
from tests.support import reduction, rounds

N = 4
COMPRESSED = [wires.int8(), wires.int4(), wires.bfloat16()]
compressed = pytest.mark.parametrize('wire', COMPRESSED, ids=str)

# The largest change of an element by rounding, relative to the largest element
# of its block: half of a step of 1/127, of 1/7, or of 2^-8.
ROUNDING = {'int8()': 1 / 254, 'int4()': 1 / 14, 'bfloat16()': 1 / 512}


def test_a_mean_of_more_workers_than_are_left_can_be_applied():
  """Parts for two workers and for three are padded to other lengths."""
  wire, tree = wires.int8(), jax.ShapeDtypeStruct((512,), jnp.float32)
  state = jax.eval_shape(wire.init, tree)
  two, three = (
    jax.make_jaxpr(wire.mean, axis_env=[(ss.AXIS, workers)], return_shape=True)(
      tree, state
    )[1]
    for workers in (2, 3)
  )
  assert two == three


def by_wire(moves):
  start = jnp.zeros(moves.shape[2:])
  return rounds.run(averagers.mean(wire=wires.int8()), start, moves)[0]


def by_reducer(grads):
  return reduction.run(ss.reducers.int8(), grads)[0]


@pytest.mark.parametrize('average', [by_wire, by_reducer])
def test_an_average_of_equal_vectors_is_exact_to_a_step_of_its_block(average):
  rng = np.random.default_rng(0)
  vector = (rng.normal(size=3000) * np.logspace(-3, 3, 3000)).astype(np.float32)
  left = average(np.tile(vector, (1, N, 1)))
  blocks = np.abs(np.pad(vector, (0, 72))).reshape(-1, wires.BLOCK).max(1)
  allowed = np.repeat(blocks, wires.BLOCK)[:3000] / 127
  assert (np.abs(left[0] - vector) <= allowed * (1 + 1e-5)).all()
  assert (np.abs(left[0] - vector) > allowed / 4).any()  # It did round.


@pytest.mark.parametrize(
  'wire, steps, size',
  [
    *((wire, 1000, 300) for wire in COMPRESSED),
    (wires.int2(), 400, 600),
    (sparse_wire.sparse(0.05), 30, 9000),
  ],
  ids=str,
)
def test_a_mean_lacks_what_the_workers_keep_and_does_not_drift(
  wire, steps, size
):
  """Workers move by at most M in a round.

  With rounding by a fraction r, a worker's error E stays below r (M + E) for
  its message, and below N r (M + E) for the share that it averages, so below
  M (N + 1) r / (1 - (N + 1) r). In any round, the consensus lacks only the
  workers' mean error.
  """
  rng = np.random.default_rng(0)
  moves = rng.uniform(-1, 1, (steps, N, size)).astype(np.float32)
  moves[..., 7] = 1e-3  # Without feedback, it would be rounded off each time.
  left, state = rounds.run(averagers.mean(wire=wire), jnp.zeros(size), moves)
  (error,) = state.error
  assert (left == left[:, :1]).all()  # All workers decode the same bits.
  exact = np.cumsum(moves.mean(1, dtype=np.float64), axis=0)
  rounded = steps * np.spacing(np.float32(np.abs(exact).max()))
  np.testing.assert_allclose(left[:, 0] + error.mean(1), exact, atol=rounded)
  missing = np.abs(left[:, 0] - exact)
  if rounding := ROUNDING.get(str(wire)):
    r = (N + 1) * rounding
    bound = r / (1 - r)
    assert np.abs(error).max() <= bound
    assert missing.max() <= bound + rounded
    assert missing[-1, 7] < 0.05  # Out of 1.
  elif steps > 100:  # Rounding by half of the values' size delays much.
    assert missing[-100:].max() < 1.2 * missing[40:140].max()


@pytest.mark.parametrize('bits', [4, 8])
def test_integers_of_few_bits_are_packed_without_loss(bits):
  codec, most = wires.integers(bits), 2 ** (bits - 1) - 1
  rng = np.random.default_rng(0)
  scale = np.repeat(2.0 ** np.arange(-3, 3), wires.BLOCK)
  codes = rng.integers(-most, most, scale.size, endpoint=True)
  codes[:: wires.BLOCK] = most  # The largest of a block gives its scale.
  values = (codes * scale).astype(np.float32)
  message = codec.encode(jnp.asarray(values))
  assert message.dtype == jnp.int8
  assert message.nbytes == 1536 * bits // 8 + 4 * 6
  np.testing.assert_array_equal(codec.decode(message), values)


def test_two_bits_have_the_least_error_of_a_gaussian_and_always_less_than_all():
  codec, rng = wires.two_levels(), np.random.default_rng(0)

  def error(blocks):
    left = blocks - np.asarray(codec.decode(codec.encode(blocks)))
    return np.square(left / np.abs(blocks).max()).sum(axis=1) / (
      np.square(blocks / np.abs(blocks).max()).sum(axis=1)
    )

  gaussian = rng.normal(size=(1000, wires.BLOCK)).astype(np.float32)
  limit = 0.1175  # Best code of four values: Max 1960, table I.
  assert error(gaussian).mean() == pytest.approx(limit, rel=0.02)
  alone = np.eye(1, wires.BLOCK, 9, dtype=np.float32)
  heavy = rng.standard_cauchy((1000, wires.BLOCK)).astype(np.float32)
  for blocks in (alone, heavy, heavy**3, 1e37 * alone, 1e-30 * gaussian):
    assert (error(blocks) < 1).all()
  zeros = np.zeros((1, wires.BLOCK), np.float32)
  assert not np.any(codec.decode(codec.encode(zeros)))
  assert not np.any(codec.decode(0 * codec.encode(gaussian)))


def test_two_bits_keep_running_averages_where_they_belong():
  rng = np.random.default_rng(0)
  target = rng.normal(size=600)
  seen = target + rng.normal(size=(300, N, 600)) / 4
  mean = averagers.mean(wire=wires.int2())

  def worker(seen):
    def step(carry, seen):
      stats, state = carry
      stats, state = mean.apply(0.9 * stats + 0.1 * seen, state)
      return (stats, state), stats

    start = jnp.zeros(600), mean.init(jnp.zeros(600))
    return jax.lax.scan(step, start, seen)[1]

  seen = np.moveaxis(seen, 1, 0).astype(np.float32)
  stats = jax.vmap(worker, axis_name=ss.AXIS)(seen)
  away = np.abs(np.asarray(stats[0, 100:]) - target).max(axis=1)
  assert away.max() < 0.5 and away[-100:].max() < 1.2 * away[:100].max()


@pytest.mark.parametrize(
  'wire',
  [*COMPRESSED, wires.int2(), sparse_wire.sparse(0.5), wires.float32()],
  ids=str,
)
def test_values_that_are_not_finite_on_one_worker_are_forgotten(wire):
  """The next mean of finite vectors is finite again, like in float32."""
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(N, 12, 600)).astype(np.float32)

  def worker(vectors):
    def step(state, vector):
      mean, state = wire.mean(vector, state)
      return state, (mean, state)

    return jax.lax.scan(step, wire.init(vectors[0]), vectors)[1]

  run = jax.jit(jax.vmap(worker, axis_name=ss.AXIS))
  for bad in (np.nan, np.inf, 3e38):
    vectors[1, 3, 300:340] = bad
    means, state = run(vectors)
    assert np.isfinite(means[0, :3]).all() and np.isfinite(means[:, 4:]).all()
    assert np.isfinite(means[:, 3]).all() == np.isfinite(bad)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def hlo(part):
  """The compiled program of one average on N devices."""
  tree = {'w': jnp.zeros((N, 40, 50)), 'b': jnp.zeros((N, 50))}
  mean = getattr(part, 'mean', None) or part.update

  def average(tree):
    return mean(tree, part.init(tree))[0]

  return jax.pmap(average, ss.AXIS).lower(tree).compile().as_text()


def operands(text, collective):
  """The element types of all operands of a kind of collective."""
  found = set()
  for line in text.splitlines():
    if match := re.search(rf' = (.*) {collective}(-start)?\(', line):
      found |= set(re.findall(r'(\w+)\[', match[1]))
  return found


@pytest.mark.parametrize(
  'part, types',
  [
    (ss.reducers.int8(), {'s8'}),
    (wires.int8(), {'s8'}),
    (wires.int4(), {'s8'}),
    (wires.int2(), {'s8'}),
    (wires.bfloat16(), {'u16'}),
  ],
  ids=str,
)
def test_the_compiled_program_sends_few_bits(part, types):
  text = hlo(part)
  flags = {'s32'} if isinstance(part, ss.wires.Wire) else set()
  assert operands(text, 'all-reduce') == flags
  assert operands(text, 'all-to-all') == types
  assert operands(text, 'all-gather') == types
  sizes = re.findall(r'f32\[([\d,]+)\]\S* all-(?:to-all|gather)', text)
  shapes = [[int(n) for n in size.split(',')] for size in sizes]
  assert all(np.prod(shape) <= 12 for shape in shapes)  # Out of 2,050 elements.


def test_leaves_without_negative_elements_get_none():
  """A variance next to a large change would be rounded below zero."""
  wire = wires.int8()
  start = {'mean': jnp.zeros(50), 'var': jnp.full(50, 0.5)}
  moves = {
    'mean': np.full((1, N, 50), -100, np.float32),
    'var': np.full((1, N, 50), -0.499, np.float32),
  }
  left, _ = rounds.run(averagers.mean(wire=wire), start, moves)
  assert (left['var'] >= 0).all()
  assert (left['mean'] < -99).all()
  whole = {'one': jnp.concatenate([start['mean'], start['var']])}
  both = {'one': np.concatenate([moves['mean'], moves['var']], axis=-1)}
  left, _ = rounds.run(averagers.mean(wire=wire), whole, both)
  assert (left['one'][..., 50:] < 0).any()  # Signed: rounded like other leaves.


@compressed
def test_a_subset_ignores_the_others_and_they_keep_their_error(wire):
  rng = np.random.default_rng(0)
  values = rng.normal(size=(N, 600)).astype(np.float32)
  values[1] = np.nan
  drawn = np.array([True, False, True, False])
  error = rng.normal(size=(N, 600)).astype(np.float32) / 50

  def average(values, error, where):
    state = wires.WireState([jnp.zeros(600)], [error])
    return wire.mean(values, state, where=where, count=2)

  mean, state = mappers.Pmap(N).map_workers(average)(values, error, drawn)
  mean, after = np.asarray(mean), np.asarray(state.error[0])
  assert (mean == mean[0]).all()
  exact = (values + error)[drawn].mean(0)
  np.testing.assert_allclose(mean[0], exact, atol=16 * ROUNDING[str(wire)])
  # Everything missing from the sum is held by some worker.
  waits = (after - np.where(drawn[:, None], 0, error)).sum(0)
  np.testing.assert_allclose(2 * mean[0] + waits, 2 * exact, atol=1e-5)


@compressed
def test_changes_are_counted_from_the_result_of_an_outer_step(wire):
  moves = np.random.default_rng(0).normal(size=(8, N, 600)).astype(np.float32)
  outer = optax.sgd(0.7, momentum=0.9, nesterov=True)
  left, state = rounds.run(
    averagers.outer(outer, averager=averagers.mean(wire=wire)),
    jnp.ones(600),
    moves,
    'pmap',
  )
  np.testing.assert_array_equal(state.averager.reference[0], state.consensus)
  np.testing.assert_array_equal(left, state.consensus)
  assert (left == left[:, :1]).all()
  exact, _ = rounds.run(averagers.outer(outer), jnp.ones(600), moves)
  np.testing.assert_allclose(
    left, exact, atol=max(0.5, 10 * ROUNDING[str(wire)])
  )
  assert np.abs(exact).max() > 5
