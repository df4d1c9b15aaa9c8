"""Cost of collectives on a network."""

import numpy as np
import pytest

from selsync_jax.sync import network
from selsync_jax.sync.traffic import Collective


@pytest.mark.parametrize(
  'text, bits',
  [
    *(('200Mbit', 2e8), ('2.5gbit', 2.5e9), ('56 kbit', 56e3)),
    *(('1Gbps', 1e9), ('10Gb/s', 1e10), ('1GB/s', 8e9), ('125MBps', 1e9)),
  ],
)
def test_bandwidths_are_read(text, bits):
  assert network.bandwidth(text) == bits


@pytest.mark.parametrize(
  'text, seconds', [('1ms', 1e-3), ('50us', 5e-5), ('0ms', 0), ('.5s', 0.5)]
)
def test_latencies_are_read(text, seconds):
  assert network.latency(text) == pytest.approx(seconds)


def ring_seconds(workers, nbytes, bits, latency):
  """A ring, round by round, with a separate clock for each worker."""
  clock = np.zeros(workers)
  for _ in range(2 * (workers - 1)):  # Reduce-scatter, then all-gather.
    sent = clock + nbytes / workers * 8 / bits
    clock = np.maximum(sent, np.roll(sent, 1) + latency)
  return clock.max()


@pytest.mark.parametrize('workers', [1, 2, 5, 16])
@pytest.mark.parametrize('nbytes', [4, 10**6])
def test_an_all_reduce_costs_what_its_rounds_cost(workers, nbytes):
  links = network.Network(workers, 1e8, 1e-3)
  expected = ring_seconds(workers, nbytes, 1e8, 1e-3)
  seconds = links.seconds(Collective('all_reduce', nbytes))
  assert seconds == pytest.approx(expected)
  halves = (
    Collective('reduce_scatter', nbytes),
    Collective('all_gather', nbytes / workers),
  )
  assert sum(map(links.seconds, halves)) == pytest.approx(expected)
  pair = links.seconds(Collective('exchange', nbytes))
  assert pair == pytest.approx((workers > 1) * (nbytes * 8 / 1e8 + 1e-3))


def test_a_collective_that_is_issued_seldom_costs_its_share():
  links = network.Network(4, 1e8, 1e-3)
  always = Collective('broadcast', 1000, 'step')
  seldom = always._replace(rate=0.25)
  assert links.seconds(seldom) == pytest.approx(links.seconds(always) / 4)
  assert seldom.sent(4) == always.sent(4) / 4 == 3 / 4 * 1000 / 4
