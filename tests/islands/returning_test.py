"""Islands of a custom loop resume, or continue from another one's state."""

from concurrent import futures
import functools
import io

from flax import serialization
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.config import RunError
from selsync_jax.islands import server
from selsync_jax.islands.board import Board
from tests.support.island_loop import local_step, START, STEPS, TX, X, Y
from tests.support.meetings import until

N, STOP = 2, 6
STRATEGY = ss.Strategy(
  ss.budgeted(ss.selsync(0.3), lssr=0.5),
  ss.delayed(
    ss.outer(
      optax.sgd(0.7, 0.9, nesterov=True),
      averager=ss.mean(wire=ss.wires.int4()),
    ),
    3,
    keep=0.0,
  ),
)


class Loop:
  """The training loop of one worker."""

  def __init__(self, params=START):
    self.params, self.opt_state = params, TX.init(params)

  def save(self):
    return serialization.to_bytes(jax.tree.leaves(self.opt_state))

  def load(self, params, content):
    leaves, structure = jax.tree.flatten(self.opt_state)
    found = serialization.from_bytes(leaves, content)
    self.params = params
    self.opt_state = structure.unflatten(found)

  def join(self, peers, strategy=STRATEGY, **given):
    return ss.Island(peers, self.params, strategy, **given)

  def train(self, island, stop=STEPS):
    """Returns everything that the loop has after each step."""
    found = {island.step: self.whole(island)}
    while island.step < stop:
      rows = X[island.step, island.index], Y[island.step, island.index]
      params, self.opt_state, grads = local_step(
        self.params, self.opt_state, *rows
      )
      self.params = island.after_step(params, grads)
      found[island.step] = self.whole(island)
    return found

  def whole(self, island):
    own = self.params, self.opt_state, island.state()
    return jax.tree.map(np.asarray, own)


def each(do):
  """Returns `do` of each island's loop and peers, on one board."""
  board = Board(N, timeout=60)
  with futures.ThreadPoolExecutor(N) as pool:
    calls = [pool.submit(do, i, board.peers(i)) for i in range(N)]
    futures.wait(calls)
  return calls


@pytest.fixture(scope='module')
def undisturbed():
  """Everything of each loop after each step, by island."""
  calls = each(lambda _, peers: (own := Loop()).train(own.join(peers)))
  return [call.result() for call in calls]


def saved(loop, whole):
  """Gives a loop what is in its file; returns the island's state."""
  file = io.BytesIO()
  params, opt_state, state = whole
  np.savez(file, **state)
  file.seek(0)
  loop.params, loop.opt_state = params, opt_state
  return dict(np.load(file))


def test_all_that_resume_from_their_own_states_are_as_undisturbed(undisturbed):
  def resume(i, peers):
    loop = Loop()
    state = saved(loop, undisturbed[i][STOP])
    assert state['averager/left'] > 0  # An average is in flight.
    return loop.train(loop.join(peers, state=state))

  for call, whole in zip(each(resume), undisturbed, strict=True):
    found = call.result()
    assert min(found) == STOP
    for step, own in found.items():
      jax.tree.map(np.testing.assert_array_equal, own, whole[step])


@pytest.mark.parametrize(
  'older', [None, pytest.param(2, marks=pytest.mark.slow)]
)
def test_one_with_an_older_state_or_none_continues_from_anothers(
  older, undisturbed
):
  mesh = jax.make_mesh((2,), 'x', axis_types=(AxisType.Explicit,))
  split = NamedSharding(mesh, PartitionSpec())

  def resume(i, peers):
    loop = Loop(jax.device_put(START, split) if i else START)
    state = None
    if i == 0 or older:
      state = saved(loop, undisturbed[i][older if i else STOP])
    island = loop.join(peers, state=state, save=loop.save, load=loop.load)
    return loop.train(island, STEPS)

  one, other = (call.result() for call in each(resume))
  assert min(one) == min(other) == STOP
  jax.tree.map(np.testing.assert_array_equal, one[STOP], other[STOP])
  (arrival, *_) = (
    step
    for step in range(STOP + 1, STEPS)
    if one[step - 1][2]['averager/left'] == 1
  )
  jax.tree.map(
    np.testing.assert_array_equal, one[arrival][0], other[arrival][0]
  )


def state_of(strategy, islands=1):
  state = Loop().join(Board(1).peers(0), strategy).state()
  return state | {'islands': jnp.int32(islands)}


ONE = ss.Strategy(ss.every(2), ss.outer(optax.sgd(0.7, 0.9)))
GOOD = 'averager/consensus/w'


@pytest.mark.parametrize(
  'given, line',
  [
    ({'state': [1]}, r'state: must be the dict of island.state\(\), got list'),
    (
      {'state': lambda good: {'step': good['step']}},
      r'state: must have the \d+ arrays of every\(2\) and outer\(.*, got 1; '
      'averager/.* is missing',
    ),
    (
      {'state': lambda good: good | {'averager/error/0': np.zeros(3)}},
      'averager/error/0 is none of them',
    ),
    (
      {'state': lambda good: good | {GOOD: good[GOOD].astype(jnp.bfloat16)}},
      rf'state: {GOOD} must be float32\[5, 4\], got bfloat16\[5, 4\]',
    ),
    ({'save': bytes}, 'save: needs load; give both or neither'),
    ({'load': print}, 'load: needs save; give both or neither'),
    ({'save': dict, 'load': print}, 'save: must return bytes, got dict'),
  ],
)
def test_what_no_island_can_resume_from_is_refused_at_once(given, line):
  if callable(change := given.get('state')):
    given = given | {'state': change(state_of(ONE))}
  with pytest.raises(ValueError, match=line):
    ss.Island.join('host:1/token/print', 'maui', START, ONE, **given)


def test_the_others_hear_at_once_that_a_state_is_of_another_run(said, pool):
  state = state_of(ONE, islands=3)
  with server.CoordinatorServer(2, say=said.put) as point:
    join = functools.partial(ss.Island.join, str(point.invitation))
    good = pool.submit(join, 'a', START, ONE)
    until(said, 'a has joined')
    line = 'state: islands=3 must be the number of islands of this run, 2'
    with pytest.raises(ValueError, match=f'^{line}'):
      join('b', START, ONE, state=state)
    with pytest.raises(RunError, match=f'^island b has failed: .*{line}'):
      good.result(timeout=20)


def test_without_load_all_need_a_state_of_the_same_step():
  state = state_of(ONE, 2)
  line = 'no checkpoint in common: 0 step 0, 1 none; give each island its own'
  for call in each(
    lambda i, peers: Loop().join(peers, ONE, state=None if i else state)
  ):
    with pytest.raises(RunError, match=line):
      call.result()


def test_a_copy_that_does_not_load_ends_in_a_line():
  state = state_of(ONE, 2)

  def join(i, peers):
    loop = Loop()
    functions = {'save': lambda: b'junk', 'load': loop.load}
    return loop.join(peers, ONE, state=None if i else state, **functions)

  good, bad = each(join)
  good.result()
  with pytest.raises(
    RunError, match=r'^load: cannot load the copy of island 0'
  ):
    bad.result()
