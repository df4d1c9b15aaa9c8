"""Messages over Arrow Flight, and who may read them."""

from concurrent import futures
import contextlib

from jax import lax
import numpy as np
from pyarrow import flight as arrow
import pytest

import selsync_jax as ss
from selsync_jax.config import RunError
from selsync_jax.islands import flight
from selsync_jax.islands.program import cut

N = 3
TYPES = (np.dtype('float32'), np.dtype('bfloat16'))


@pytest.fixture(scope='module')
def credentials():
  return flight.create_credentials('secret')


@contextlib.contextmanager
def outboxes(credentials, count, timeout=30.0):
  """Outboxes at free ports."""
  with contextlib.ExitStack() as stack:
    yield [
      stack.enter_context(flight.Outbox('127.0.0.1:0', credentials, timeout))
      for _ in range(count)
    ]


def addresses_of(found):
  names = ('hawaii', 'maui', 'oahu')
  return {n: f'127.0.0.1:{o.port}' for n, o in zip(names, found, strict=False)}


@pytest.fixture
def islands(credentials):
  """The peers of each of N islands."""
  with outboxes(credentials, N) as found:
    addresses = addresses_of(found)
    yield [
      flight.FlightPeers(name, addresses, outbox, credentials, 30.0)
      for name, outbox in zip(addresses, found, strict=True)
    ]


def test_a_mean_arrives_whatever_its_length_and_type(islands):
  rows = np.random.default_rng(0).normal(size=(N, 700_001))

  def mean(x):
    large = lax.pmean(x, ss.AXIS)  # In pieces of several blocks.
    few = lax.pmean(x[:3], ss.AXIS), lax.pmean(x[0], ss.AXIS)
    return large, *few, lax.psum(x[:0], ss.AXIS)

  run = cut(mean, N)

  def island(peers):
    return [run(peers, np.asarray(rows[peers.index], d)) for d in TYPES]

  with futures.ThreadPoolExecutor(N) as pool:
    found = list(pool.map(island, islands))
  for dtype, tolerance, results in zip(
    TYPES, (1e-6, 1e-2), zip(*found, strict=True), strict=True
  ):
    expected = rows.astype(dtype).astype(float).mean(0)
    for large, few, one, none in results:
      assert large.dtype == few.dtype == none.dtype == dtype
      np.testing.assert_array_equal(large, results[0][0])
      np.testing.assert_allclose(large, expected, rtol=0.1, atol=tolerance)
      np.testing.assert_array_equal(few, large[:3])
      np.testing.assert_array_equal(one, large[0], strict=True)
      assert none.shape == (0,)


def test_channels_are_apart(islands):
  with futures.ThreadPoolExecutor(2 * N) as pool:
    work = []
    for name in ('one', 'other'):
      for peers in islands[:: 1 if name == 'one' else -1]:
        message = np.array([peers.index, len(name)])
        exchange = peers.channel(name).exchange
        work.append((name, pool.submit(exchange, [message] * N)))
  for name, result in work:
    expected = [[i, len(name)] for i in range(N)]
    np.testing.assert_array_equal(result.result(), expected)


def test_an_island_that_is_silent_or_gone_is_named(credentials):
  with outboxes(credentials, 2) as found:
    addresses = addresses_of(found)
    peers = flight.FlightPeers('hawaii', addresses, found[0], credentials, 0.2)
    with pytest.raises(RunError, match=r'^island maui has not .* for 0\.2 s$'):
      peers.exchange([np.zeros(1)] * 2)
    found[1].shutdown()
    peers = flight.FlightPeers('hawaii', addresses, found[0], credentials, 30.0)
    with pytest.raises(RunError, match=r'^island maui cannot be reached$'):
      peers.exchange([np.zeros(1)] * 2)


def test_a_stranger_reads_nothing(credentials):
  with outboxes(credentials, 1) as (outbox,):
    outbox.put(b'ticket', np.zeros(1))
    address = f'127.0.0.1:{outbox.port}'
    ours = flight.client(address, credentials.certificate)
    other = flight.create_credentials('secret')
    cases = {
      'no token': (ours, arrow.FlightCallOptions(timeout=5)),
      'another token': (ours, flight.call_options('Secret', 5)),
      'another certificate': (
        flight.client(address, other.certificate),
        flight.call_options('secret', 5),
      ),
      'no TLS': (
        arrow.FlightClient(f'grpc://{address}'),
        flight.call_options('secret', 5),
      ),
    }
    for client, options in cases.values():
      with pytest.raises(arrow.FlightError):
        client.do_get(arrow.Ticket(b'ticket'), options).read_all()
    ours.do_get(
      arrow.Ticket(b'ticket'), flight.call_options('secret', 5)
    ).read_all()
