"""Islands continue when another one has ended, at any moment."""

from concurrent import futures
import contextlib

import jax
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.config import RunError
from selsync_jax.islands import joining, peers, server
from selsync_jax.islands.exchange import FlightPeers
from tests.support.island_loop import local_step, N, START, STEPS, TX, X, Y

DEAD, PERIOD, LAST = 1, 4, 8  # The dead one ends in the average of step LAST.


class Death(Exception):
  """The end of an island, as others see it when it is killed."""


class Mortal(FlightPeers):
  """Peers of an island that ends in an exchange, at one of three moments."""

  moment = None

  def exchange(self, messages, about=None):
    if self.moment == 'after it':
      super().exchange(messages, about)
    if self.moment == 'before it fetches':
      like = about.like
      place = self._arrive('average', about.operation, like.dtype, like.shape)
      self._outbox.put(place.key, messages)
    if self.moment:
      raise Death
    return super().exchange(messages, about)


MOMENTS = 'before it serves', 'before it fetches', 'after it'
STRATEGIES = {
  'selsync': ss.Strategy(ss.selsync(0.1), ss.mean()),
  'late': ss.Strategy(
    ss.every(3), ss.delayed(ss.mean(wire=ss.wires.int8()), 2, keep=0.0)
  ),
  'DiLoCo': ss.Strategy(ss.every(PERIOD), ss.outer(optax.sgd(0.7, 0.9, True))),
  'gossip': ss.Strategy(ss.every(2), ss.gossip('ring')),
}


def train(strategy, last=LAST, moment=MOMENTS[0], minimum=2):
  """Returns the surviving islands' results of the loop, and their names."""

  def worker(i, invitation):
    others = joining.join(invitation, f'{i}', 'a run', 30.0)
    island = ss.Island(others, START, strategy)
    params, opt_state, trajectory = START, TX.init(START), []
    for t in range(STEPS):
      if i == DEAD and t + 1 == last:
        others.moment = moment
      params, opt_state, grads = local_step(params, opt_state, X[t, i], Y[t, i])
      with contextlib.suppress(Death):
        params = island.after_step(params, grads)
      if i == DEAD and t + 1 == last:
        others.fail()
        return None
      trajectory.append(jax.device_get(params))
    assert island.size == N - 1
    return jax.device_get(island.leave(params)), trajectory

  with (
    server.CoordinatorServer(N, minimum=minimum) as point,
    futures.ThreadPoolExecutor(N) as pool,
  ):
    work = [pool.submit(worker, i, point.invitation) for i in range(N)]
    return [each.result(timeout=120) for each in work]


def reference():
  """Local SGD of workers, one of which ends before an average."""
  workers = [(START, TX.init(START)) for _ in range(N)]
  for t in range(STEPS):
    for i, (params, opt_state) in enumerate(workers):
      params, opt_state, _ = local_step(params, opt_state, X[t, i], Y[t, i])
      workers[i] = params, opt_state
    if (t + 1) % PERIOD == 0:
      there = [i for i in range(N) if i != DEAD or t + 1 < LAST]
      mean = jax.tree.map(
        lambda *x: np.mean(x, axis=0), *(workers[i][0] for i in there)
      )
      for i in there:
        workers[i] = mean, workers[i][1]
  return [params for params, _ in workers]


@pytest.fixture(autouse=True)
def mortal(monkeypatch):
  monkeypatch.setattr(joining, 'FlightPeers', Mortal)
  monkeypatch.setattr(peers, 'SMALL', 8)  # Affects votes, not means.


@pytest.mark.parametrize('moment', MOMENTS)
def test_an_average_in_which_an_island_ends_is_that_of_the_others(moment):
  found = train(ss.Strategy(ss.every(PERIOD), ss.mean()), moment=moment)
  assert found[DEAD] is None
  for i, expected in enumerate(reference()):
    if i != DEAD:
      jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6),
        found[i][0],
        expected,
      )


MORE = 'late', 'DiLoCo', 'gossip'


@pytest.mark.parametrize(
  'name',
  [
    'selsync',
    *(pytest.param(n, marks=pytest.mark.slow) for n in MORE),
  ],
)
def test_every_kind_of_average_goes_on_with_one_island_less(name):
  one, dead, other = train(STRATEGIES[name], last=7)
  assert dead is None
  together = [
    t
    for t, trees in enumerate(zip(one[1], other[1], strict=True))
    if all(map(np.array_equal, *map(jax.tree.leaves, trees)))
  ]
  if name == 'late':  # Never before all steps are taken.
    jax.tree.map(np.testing.assert_array_equal, one[0], other[0])
  else:
    assert max(together) > 8


def test_all_end_when_too_few_are_left():
  with pytest.raises(RunError, match=r'^island 1 has failed$'):
    train(STRATEGIES['selsync'], minimum=3)
