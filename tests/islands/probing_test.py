"""Measuring the links between islands."""

import functools

import numpy as np
import pytest

from selsync_jax.config import RunError
from selsync_jax.islands import joining, probing, server
from selsync_jax.sync.traffic import Collective

SIZE = 3 << 16


@pytest.fixture
def short(monkeypatch):
  monkeypatch.setattr(probing, 'FETCHES', 3)


@pytest.mark.usefixtures('short')
def test_a_row_of_the_matrix_has_what_its_island_sends(pool):
  """Only maui, the second of three, sends slowly."""
  limits = {'hawaii': None, 'maui': 0.25e6, 'oahu': None}
  with server.CoordinatorServer(3) as point:

    def measured(name):
      run, limit = 'a run', limits[name]
      with joining.join(point.invitation, name, run, 20.0, limit) as peers:
        return probing.measure(peers, SIZE)

    links, *others = pool.map(measured, limits)
  for other in others:
    np.testing.assert_equal(other, links)
  assert [*links.names] == [*limits]
  between = ~np.eye(3, dtype=bool)
  for figures in links.bandwidth, links.round_trip:
    assert np.isnan(figures.diagonal()).all() and (figures[between] > 0).all()
  for other in 0, 2:
    slow = max(links.bandwidth[1, other], links.slowest)
    assert slow < links.bandwidth[other, 1]
  network = links.network(16)
  assert network.workers == 16
  assert network.round_trip == links.round_trip[between].max()
  assert network.bandwidth == links.slowest


@pytest.mark.usefixtures('short')
@pytest.mark.parametrize('minimum', [2, 3])
def test_when_a_probe_ends_the_others_end_or_measure_again(minimum, pool):
  with server.CoordinatorServer(3, minimum=minimum) as point:
    invitation = str(point.invitation)
    others = [
      pool.submit(probing.probe, invitation, name, SIZE) for name in 'ab'
    ]
    c = joining.join(point.invitation, 'c', probing.described(SIZE))
    c.serve(np.zeros(1, np.uint8))
    c.fold('pmax', np.array(0.0))  # The others have fetched once.
    c.fail()
    for other in others:
      if minimum == 2:
        assert other.result().names == ('a', 'b')
        continue
      with pytest.raises(RunError, match=r'^island c has failed$'):
        other.result()


def test_a_probe_is_refused_where_islands_train_or_where_it_is_not_invited(
  pool, said
):
  with server.CoordinatorServer(2, timeout=1.0, say=said.put) as point:
    joined = pool.submit(joining.join, point.invitation, 'maui', 'a run')
    assert 'maui has joined' in said.get(timeout=20)
    with pytest.raises(RunError, match='would run something else than maui'):
      probing.probe(str(point.invitation), 'oahu', SIZE)
    with pytest.raises(RunError, match='1 of 2 islands have joined'):
      joined.result()
  with pytest.raises(RunError, match="'nonsense' is not an invitation"):
    probing.probe('nonsense', 'oahu', SIZE)


@pytest.mark.parametrize(
  'kind, nbytes, trips',
  [
    ('all_reduce', 4, {1: 0, 2: 1, 5: 1, 16: 1}),  # By the coordinator.
    ('all_gather', 4, {1: 0, 2: 1, 5: 1, 16: 1}),
    ('all_reduce', 1e6, {1: 0, 2: 2, 5: 2, 6: 4, 16: 8}),
    ('all_to_all', 1e6, {1: 0, 2: 1, 5: 1, 6: 2, 16: 4}),
    ('exchange', 1e6, {1: 0, 2: 1, 5: 1, 6: 2, 16: 4}),
  ],
)
def test_islands_fetch_four_messages_at_a_time(kind, nbytes, trips):
  collective = Collective(kind, nbytes)
  network = functools.partial(
    probing.IslandNetwork, bandwidth=np.inf, latency=0.5
  )
  assert {n: network(n).seconds(collective) for n in trips} == trips
