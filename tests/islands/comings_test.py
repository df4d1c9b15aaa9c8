"""Islands that join late, fall behind, and leave."""

from concurrent import futures
import functools
import itertools
import time

import numpy as np
import pytest

from selsync_jax.cluster.protocol import run
from selsync_jax.config import RunError, Stopped
from selsync_jax.islands import joining, server
from selsync_jax.islands.program import complete
from tests.support.meetings import admit, enter, met, until


@pytest.mark.parametrize('handed_over', [True, False])
def test_one_that_leaves_hands_over_before_if_there_is_time(
  handed_over, said, pool, monkeypatch
):
  """It leaves when others may join, after all have met.

  But if too few would be left, all stop together.
  """
  monkeypatch.setattr(run, 'ASKING', 0.1)
  monkeypatch.setattr(run, 'PARTING', 30.0 if handed_over else 0.5)

  def train(peers, leaves):
    if leaves:
      peers.agreement.ask()
    for step in itertools.count(1):
      if peers.agreement.stops_after(step):
        return step, peers.size
      complete(peers, lambda peers: peers.share(np.zeros(1)))
      time.sleep(0.01)
      if handed_over and step % 100 == 0 and peers.admits:
        admitted.append((step, peers.size))
        peers.admit()
        assert peers.size == 2

  admitted = []
  with met('abc', minimum=2, say=said.put) as (_, islands, _):
    work = [pool.submit(train, peers, peers.index == 1) for peers in islands]
    with pytest.raises(Stopped, match=r'^left after a signal; the others co'):
      work[1].result(timeout=30)
    until(said, 'b has left')
    islands[0].agreement.ask()  # Too few would be left.
    assert work[0].result() == work[2].result()
    assert work[0].result()[1] == 2
    assert admitted == [(100, 3)] * 3 * handed_over
  until(said, 'a has left')


def test_one_that_is_late_is_waited_for_no_longer_than_the_grace(said):
  served = {'minimum': 1, 'say': said.put, 'grace': 0.6}
  with met('ab', timeout=3.0, **served) as (_, (a, b), _):
    for step in 1, 2:  # No island is late before its first step.
      for peers in a, b:
        peers.reach(step)
      time.sleep(0.7)
    complete(a, lambda peers: peers.share(np.zeros(1)))
    assert a.names == ('a',)
    until(said, 'b is more than 0.6 s late')


def test_a_run_begins_with_enough_islands_and_others_come_late(said, pool):
  with server.CoordinatorServer(3, 'localhost', 0, 1.0, said.put, 2) as point:
    join = functools.partial(
      joining.join, point.invitation, run='a run', timeout=20.0, welcomes=True
    )
    for known in ('d', 'b', ''), ('d', 'b', 'a'):
      # The second knows which it was, and is the first: as in its last run.
      islands = [
        pool.submit(join, 'b'),
        pool.submit(functools.partial(join, slot=0), 'd'),
      ]
      b, d = (island.result() for island in islands)
      until(said, 'and the others begin: 2 of 3 islands')
      assert b.names == d.names == ('d', 'b') and tuple(b.slots) == known
      assert (d.slot, b.slot) == (0, 1)
      if '' in known:
        join('random').fail()  # It has not trained, so its slot is free again.
        until(said, 'random has failed')
      late = join('a')
      assert late.prepares and late.slot == 2
      entered = pool.submit(enter, late)
      admit([b, d], pool)
      entered.result()
      assert {peers.names for peers in (b, d, late)} == {('d', 'b', 'a')}
      with pytest.raises(RunError, match=r'island c is not one of a, b, d$'):
        join('c')
      futures.wait(pool.submit(peers.close) for peers in (b, d, late))
