"""What a user's part declares to send is what its program sends."""

from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import optax
import pytest

import selsync_jax as ss
from selsync_jax.sync.copies import parameter_copies
from selsync_jax.sync.leaves import Leaves
from selsync_jax.sync.leaves import NONE
from selsync_jax.training import declared
from selsync_jax.training.step import init_state

N = 4
SHARED = {'w': jnp.zeros((3, 2)), 'b': jnp.zeros(2)}


class VotedState(NamedTuple):
  count: Any
  sync: Any


def voting(*sends, every=1):
  """A trigger that votes, and declares this."""

  def init(params):
    return VotedState(jnp.int32(0), jnp.bool(False))

  def update(updates, state, params=None, **_):
    flag = jnp.int32(optax.tree.norm(updates) > 1)
    count = state.count + 1
    if every == 1:
      return updates, VotedState(count, lax.psum(flag, ss.AXIS) > 0)
    sync = lax.cond(
      count % every == 0,
      lambda: lax.psum(flag, ss.AXIS) > 0,
      lambda: jnp.bool(False),
    )
    return updates, VotedState(count, sync)

  return ss.Trigger(init, update, lambda params, workers: sends)


def gathering(*sends):
  """An averager that gathers each array, and declares this."""

  def apply(tree, state):
    gathered = lax.all_gather(tree, ss.AXIS)
    return jax.tree.map(lambda x: jnp.median(x, axis=0), gathered), state

  return ss.Averager(lambda tree: (), apply, lambda tree, workers: sends)


def looping(run, *sends):
  """An averager that sends 8 bytes in a loop or branch, and declares this."""

  def send(x):
    return x + lax.pmean(jnp.zeros(2), ss.AXIS).sum()

  def apply(tree, state):
    params = tree['params']
    return tree | {'params': params | {'b': run(send, params['b'])}}, state

  return ss.Averager(lambda tree: (), apply, lambda tree, workers: sends)


def by_branch(send, x):
  return lax.switch(jnp.int32(x[0]), [send, lambda x: send(2 * x)], x)


def by_scan(send, x):
  return lax.fori_loop(0, 3, lambda i, x: send(x), x)


def by_while(send, x):
  return lax.while_loop(lambda x: x[0] < 1, send, x)


def own_wire():
  """A wire of a user, which sends values as they are."""
  usual = ss.wires.float32()
  return ss.wires.Wire(usual.init, usual.mean, usual.sends)


def check(trigger, averager, optimizer=None, *, frozen=NONE, **parts):
  optimizer = optimizer or optax.sgd(0.1)
  strategy = ss.Strategy(trigger, averager, **parts)
  copies = parameter_copies(optimizer, SHARED)
  state = init_state(
    SHARED, {}, strategy, optimizer, frozen=frozen, copies=copies
  )
  declared.check_sends(strategy, state, N)


VOTE = ss.Collective('all_reduce', 4, at='step')
GATHERED = ss.Collective('all_gather', 4 * 8)
PIECE = ss.Collective('all_reduce', 8)


@pytest.mark.parametrize(
  'trigger, averager',
  [
    (voting(VOTE), ss.mean()),
    (voting(VOTE._replace(rate=1 / 5), every=5), ss.mean()),
    (ss.any_of(voting(VOTE), ss.at_least_every(9)), ss.outer(optax.sgd(1.0))),
    (ss.every(2), gathering(GATHERED)),
    (ss.every(2), gathering(*2 * [GATHERED._replace(nbytes=16)])),
    (ss.every(2), gathering(GATHERED._replace(scale='length', nbytes=1))),
    (ss.every(2), ss.fragments(1, averager=gathering(GATHERED))),
    (ss.every(2), looping(by_branch, PIECE)),
    (ss.every(2), looping(by_branch, PIECE, PIECE)),
    (ss.every(2), looping(by_scan, PIECE, PIECE, PIECE)),
    (ss.every(2), looping(by_while, *3 * [PIECE])),
    (ss.every(2), ss.delayed(ss.mean(wire=own_wire()), 1)),
  ],
)
def test_what_declares_its_bytes_is_accepted(trigger, averager):
  check(trigger, averager)


@pytest.mark.parametrize(
  'trigger, averager, line',
  [
    (
      voting(VOTE._replace(at='sync')),
      ss.mean(),
      r'Trigger\(...\) sends 4 bytes by all_reduce at every step, and its '
      r"sends declares 0; .* return Collective\('all_reduce', n, at='step'\)",
    ),
    (voting(), ss.mean(), 'at every step, and its sends declares 0'),
    (
      voting(VOTE, every=5),
      ss.mean(),
      'sends 0 bytes by all_reduce at every step, and its sends declares 4',
    ),
    (
      ss.at_most_every(3, trigger=voting()),
      ss.mean(),
      r'at_most_every\(3, trigger=Trigger\(...\)\) sends 4 bytes',
    ),
    (
      ss.every(2),
      gathering(ss.Collective('all_reduce', 32)),
      r'Averager\(...\) sends 32 bytes by all_gather at synchronizations, and '
      'its sends declares 0',
    ),
    (
      ss.every(2),
      looping(by_scan, PIECE),
      'sends 24 bytes by all_reduce at synchronizations, .* declares 8',
    ),
    (
      ss.every(2),
      ss.outer(optax.sgd(1.0), averager=gathering()),
      r'outer\(.*\) sends 32 bytes by all_gather at synchronizations',
    ),
  ],
)
def test_other_bytes_than_declared_are_refused(trigger, averager, line):
  with pytest.raises(ValueError, match=line):
    check(trigger, averager)


class Seen(NamedTuple):
  last: Any
  sync: Any


def test_parts_are_given_what_their_state_was_made_of():
  """Without frozen parameters, and without those that the optimizer holds."""

  def update(updates, state, params=None, **_):
    change = optax.tree.sub(updates, state.last)
    return updates, Seen(updates, optax.tree.norm(change) > 1)

  def reduce(updates, state, params=None, **_):
    return optax.tree.sub(updates, state), updates

  trigger = ss.Trigger(
    lambda params: Seen(params, jnp.bool(False)), update, lambda *_: ()
  )
  reducer = ss.Reducer(lambda params: params, reduce, lambda *_: ())
  check(
    trigger,
    ss.mean(),
    reducer=reducer,
    frozen=Leaves(names=('b',), indices=(0,)),
  )
  policy = ss.Moments(
    lambda moments: moments,
    lambda moments, fresh, last: (
      jax.tree.map(jnp.subtract, moments, last),
      last,
    ),
    lambda *_: (),
  )
  free = optax.contrib.schedule_free_sgd(0.1)
  check(ss.every(2), ss.mean(), free, optimizer_state=policy)
