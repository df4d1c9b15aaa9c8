"""Traffic is read from the programs of parts, including custom parts."""

import itertools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.sync.copies import parameter_copies
from selsync_jax.sync.traffic import annotated, collectives
from tests.support import clipped, rounds

N = 4
TREE = {'w': jnp.zeros((3, 2)), 'b': jnp.zeros(2)}


class VotedState(NamedTuple):
  count: Any
  sync: Any


def voting(every=1, said=False):
  """A trigger that votes at some steps, and may declare how often."""

  def vote(flag):
    return lax.psum(flag, ss.AXIS) > 0

  def init(params):
    return VotedState(jnp.int32(0), jnp.bool(False))

  def update(updates, state, params=None, **_):
    flag = jnp.int32(optax.tree.norm(updates) > 1)
    count = state.count + 1
    voted = annotated(vote, rate=1 / every) if said else vote
    due = every == 1 or count % every == 0
    sync = lax.cond(due, voted, lambda flag: jnp.bool(False), flag)
    return updates, VotedState(count, sync)

  return ss.Trigger(init, update)


def gathering(axis_name=ss.AXIS):
  """An averager that gathers each array."""

  def apply(tree, state):
    gathered = lax.all_gather(tree, axis_name)
    return jax.tree.map(lambda x: jnp.median(x, axis=0), gathered), state

  return ss.Averager(lambda tree: (), apply)


def looping(run):
  """An averager that sends 8 bytes in a loop or branch."""

  def send(x):
    return x + lax.pmean(jnp.zeros(2), ss.AXIS).sum()

  def apply(tree, state):
    return tree | {'b': run(send, tree['b'])}, state

  return ss.Averager(lambda tree: (), apply)


def by_branch(send, x):
  return lax.switch(jnp.int32(x[0]), [send, lambda x: send(send(x))], x)


def by_scan(send, x):
  return lax.fori_loop(0, 3, lambda i, x: send(x), x)


def by_while(send, x):
  return lax.while_loop(lambda x: x[0] < 1, send, x)


def own_wire():
  """A user's wire, which sends values unchanged."""
  usual = ss.wires.float32()
  return ss.wires.Wire(usual.init, usual.mean)


VOTE = ss.Collective('all_reduce', 4, at='step')
BOTH = ss.Collective('all_gather', 24 + 8)
MEAN = ss.Collective('all_reduce', 32)
PIECE = ss.Collective('all_reduce', 8)


@pytest.mark.parametrize(
  'part, sent',
  [
    (voting(), [VOTE]),
    (voting(every=5), [VOTE]),  # As often as it may.
    (voting(every=5, said=True), [VOTE._replace(rate=1 / 5)]),
    (ss.any_of(voting(), ss.max_interval(9)), [VOTE]),
    (ss.min_interval(3, trigger=voting()), [VOTE]),
    (gathering(), [BOTH]),
    (ss.outer(optax.sgd(1.0), averager=gathering()), [BOTH]),
    (ss.fragments(2, averager=gathering()), [BOTH._replace(nbytes=12 + 4)]),
    (
      ss.interleave(4, gathering(), ss.mean()),
      [MEAN._replace(rate=3 / 4), BOTH._replace(rate=1 / 4)],
    ),
    (looping(by_branch), [PIECE, PIECE]),
    (looping(by_scan), [PIECE, PIECE, PIECE]),
    (looping(by_while), [PIECE]),
    (ss.delayed(ss.mean(wire=own_wire()), 3), [MEAN._replace(late=3)]),
    (ss.Moments(lambda s: (), lambda s, fresh, own: (s, own)), []),
  ],
)
def test_messages_of_a_part_are_read_from_its_program(part, sent):
  found = part.sends(TREE, N)
  if BOTH.kind in {c.kind for c in sent}:  # One message for each array.
    by_kind = itertools.groupby(found, lambda c: c._replace(nbytes=0))
    found = [
      c._replace(nbytes=sum(each.nbytes for each in every))
      for c, every in by_kind
    ]
  assert [*found] == sent


def test_annotations_of_nested_functions_combine():
  def send(x):
    return lax.psum(x, ss.AXIS)

  def outer(x):
    inner = annotated(send, rate=1 / 2, share=1 / 4, scale='length', late=1)
    return inner(x) + send(x)

  x = jnp.zeros(10)
  often = annotated(outer, rate=1 / 3, late=2)
  found = collectives(often, x, workers=N, axes=[ss.AXIS])
  inner = ss.Collective('all_reduce', 10, 'step', 1 / 6, 'length', late=2)
  assert found == (inner, inner._replace(nbytes=40, rate=1 / 3, scale=None))
  mapped = jax.vmap(often, axis_name=ss.AXIS)(jnp.ones((N, 10)))
  assert (mapped == 2 * N).all()


@pytest.mark.parametrize('mapper', ['vmap', 'pmap', 'mesh'])
def test_an_averager_of_two_rounds_runs_everywhere(mapper):
  moves = np.random.default_rng(0).normal(size=(1, N, 6)).astype(np.float32)
  moves[0, 1] *= 100
  averager, start = clipped.clipped_mean(1.0), jnp.zeros(6)
  found, _ = rounds.run(averager, start, moves, mapper)
  expected = clipped.reference(moves[0], 1.0)
  np.testing.assert_allclose(found[0], np.tile(expected, (N, 1)), atol=1e-5)
  both = 2 * (ss.Collective('all_reduce', 24),)
  assert averager.sends(start, N) == both
  late = ss.delayed(averager, 2)
  assert late.sends(start, N) == tuple(c._replace(late=2) for c in both)


def test_an_axis_that_only_the_program_knows_is_refused_in_one_line():
  """The part has no argument `axis_name` that `part` could look up."""
  with pytest.raises(ValueError, match=r'batch.*give the part an argument'):
    gathering(axis_name='batch').sends(TREE, N)
  assert ss.part(gathering)(axis_name='batch').sends(TREE, N)


def test_a_collective_of_unknown_traffic_is_refused():
  def apply(tree, state):
    each = jnp.ones(N, jnp.int32)
    sent = lax.ragged_all_to_all(
      *(tree['b'], tree['b'], each, each, each, each), axis_name=ss.AXIS
    )
    return tree | {'b': sent}, state

  averager = ss.Averager(lambda tree: (), apply)
  with pytest.raises(ValueError, match='whose traffic is not known'):
    averager.sends(TREE, N)


def test_an_axis_of_another_name_may_be_the_workers():
  part = ss.any_of(ss.selsync(0.3, axis_name='batch'), ss.every(3))
  assert part.sends(TREE, N) == (VOTE,)


class Seen(NamedTuple):
  last: Any
  sync: Any


def test_parts_get_the_leaves_that_their_state_was_made_from():
  """Frozen parameters are left out, and parameters that the optimizer holds."""

  def update(updates, state, params=None, **_):
    change = optax.tree.sub(updates, state.last)
    return updates, Seen(updates, optax.tree.norm(change) > 1)

  def reduce(updates, state, params=None, **_):
    return optax.tree.sub(updates, state), updates

  strategy = ss.Strategy(
    ss.Trigger(lambda params: Seen(params, jnp.bool(False)), update),
    ss.mean(),
    reducer=ss.Reducer(lambda params: params, reduce),
    optimizer_state=ss.Moments(
      lambda moments: moments,
      lambda moments, fresh, last: (
        jax.tree.map(jnp.subtract, moments, last),
        last,
      ),
    ),
  )
  free = optax.contrib.schedule_free_sgd(0.1)
  copies = parameter_copies(free, TREE)
  held = free.init(TREE)
  shared = {'params': TREE, 'copies': copies.take(held)}
  (sent,) = strategy.sends(shared, N, copies.rest(held))
  assert sent.nbytes == 2 * 32
